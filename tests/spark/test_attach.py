"""``db.attach``: a streaming DataFrame feeds a stream, every row once, whatever is replayed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace.errors import CatalogError, DataError, ExecutionError, HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
NOW = {"availableNow": True}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def arrive(files: Path, name: str, text: str) -> None:
    """A new file; Spark takes them by age."""
    hidden = files / f".{name}"
    hidden.write_text(text)
    age = 1_000_000_000 + len(list(files.iterdir()))
    os.utime(hidden, (age, age))
    hidden.rename(files / name)


def lines(spark: SparkSession, files: Path) -> DataFrame:
    """A stream of the files' lines, a file a batch."""
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(files)).withColumnRenamed("value", "word")


def words(db: headrace.Database) -> None:
    db.sql("CREATE STREAM s (word STRING)")
    db.sql("CREATE VIEW v AS SELECT word, count(*) AS n FROM s GROUP BY word")


def counts(db: headrace.Database) -> dict[str, int]:
    return dict(db.sql("SELECT word, n FROM v").rows())


def test_rows_arrive_and_a_restart_goes_on(spark: SparkSession, tmp_path: Path, files: Path) -> None:
    arrive(files, "1", "a\nb\na\n")
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        words(db)
        query = db.attach(lines(spark, files), "S", name="letters", trigger="0 seconds")
        query.processAllAvailable()
        assert counts(db) == {"a": 2, "b": 1}
        arrive(files, "2", "b\n")
        query.processAllAvailable()
        assert counts(db) == {"a": 2, "b": 2}
        assert (query.isActive, query.name, query.exception(), db.attachments) == (True, "letters", None, [query])
        assert query.lastProgress is not None and len(query.recentProgress) >= 1 and query.status["message"]
        assert query.awaitTermination(0.1) is False
        db.sql("DROP VIEW v")
        with pytest.raises(CatalogError, match="STREAM_IN_USE"):
            db.sql("DROP STREAM s")
        db.sql("CREATE VIEW v AS SELECT word, count(*) AS n FROM s GROUP BY word")
        with pytest.raises(CatalogError, match="ATTACHMENT_RUNNING"):
            db.attach(lines(spark, files), "s", name="letters")
        first = query.id
    assert not query.isActive  # closing the database stopped it
    arrive(files, "3", "c\n")
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        query = db.attach(lines(spark, files), "s", name="letters", trigger=NOW)
        assert query.awaitTermination(500) is True and query.id == first
        assert counts(db) == {"c": 1}
        db.sql("DROP VIEW v")
        db.sql("DROP STREAM s")
        words(db)
        db.attach(lines(spark, files), "s", name="letters", trigger=NOW).awaitTermination(500)
        assert counts(db) == {"a": 2, "b": 2, "c": 1}  # a stream made anew starts afresh


def test_a_checkpoint_rolled_back_replays_without_effect(spark: SparkSession, tmp_path: Path, files: Path) -> None:
    for number in range(3):
        arrive(files, str(number), f"a\nfile{number}\n")
    with headrace.connect(spark=spark) as db:
        words(db)
        checkpoint = tmp_path / "checkpoint"
        db.attach(lines(spark, files), "s", checkpoint=checkpoint, trigger=NOW).awaitTermination(500)
        expected = {"a": 3, "file0": 1, "file1": 1, "file2": 1}
        assert counts(db) == expected
        for number in (1, 2):  # as if the process had died before Spark noted that these were done
            (checkpoint / "commits" / str(number)).unlink()
            (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)
        (checkpoint / "offsets" / "2").unlink()
        (checkpoint / "offsets" / ".2.crc").unlink(missing_ok=True)
        arrive(files, "4", "late\n")
        again = db.attach(lines(spark, files), "s", checkpoint=checkpoint, trigger=NOW)
        again.awaitTermination(500)
        assert counts(db)["a"] == 3 and counts(db)["file1"] == 1


def test_a_failing_batch_names_its_error_and_is_not_lost(spark: SparkSession, tmp_path: Path, files: Path) -> None:
    arrive(files, "1", "1\n")
    arrive(files, "2", "x\n")
    with headrace.connect(spark=spark) as db:
        db.sql("CREATE STREAM s (word STRING)")
        db.sql("CREATE VIEW v AS SELECT count(*) AS n FROM s")
        db.sql("CREATE VIEW numbers AS SELECT sum(cast(word AS INT)) AS n FROM s")
        query = db.attach(lines(spark, files), "s", trigger=NOW)
        with pytest.raises(ExecutionError, match="CAST_INVALID_INPUT"):
            query.awaitTermination(500)
        assert isinstance(query.exception(), ExecutionError)
        assert db.sql("SELECT * FROM v").rows() == [(1,)]
        db.sql("DROP VIEW numbers")
        db.attach(lines(spark, files), "s", trigger=NOW).awaitTermination(500)
        assert db.sql("SELECT * FROM v").rows() == [(2,)]


def test_what_cannot_be_attached(spark: SparkSession, files: Path) -> None:
    with headrace.connect(spark=spark) as db:
        words(db)
        db.sql("CREATE TABLE t (word STRING)")
        db.sql("CREATE STREAM two (word INT, n DATE)")
        frame = lines(spark, files)

        def refused(frame: DataFrame, target: str) -> HeadraceError:
            with pytest.raises(HeadraceError) as caught:
                db.attach(frame, target)
            return caught.value

        assert refused(frame, "v").condition == "CANNOT_INSERT_INTO_VIEW"
        assert refused(frame, "t").condition == "WRONG_COMMAND_FOR_OBJECT_TYPE"
        assert refused(frame, "nothing").condition == "TABLE_OR_VIEW_NOT_FOUND"
        assert refused(spark.range(3), "s").condition == "NOT_A_STREAMING_FRAME"
        assert refused(frame, "two").condition == "MISSING_COLUMN"
        misfit = refused(frame.selectExpr("word", "true AS n"), "two")
        assert isinstance(misfit, DataError) and misfit.condition == "INSERT_TYPE_MISMATCH"
        assert "column word is int" in misfit.message and "column n is date" in misfit.message
        assert db.attachments == []


_VICTIM = """
    import os, signal, sys
    import headrace
    from headrace.store.writer import Writer

    path, files, deaths = sys.argv[1:]
    commit, fed = Writer._commit, 0

    def dies(self, work, label):
        global fed
        fed += label.startswith("INSERT INTO s")
        if fed == int(deaths) + 1:
            os.kill(os.getpid(), signal.SIGKILL)  # before the commit
        result = commit(self, work, label)
        if fed == int(deaths):
            os.kill(os.getpid(), signal.SIGKILL)  # after it, before Spark hears of it
        return result

    Writer._commit = dies
    db = headrace.connect(path)
    frame = db.spark.readStream.option("maxFilesPerTrigger", 1).text(files).withColumnRenamed("value", "word")
    db.attach(frame, "s", trigger={"availableNow": True}).awaitTermination()
    db.close()
"""


def test_killed_in_the_middle_every_row_is_counted_once(tmp_path: Path, files: Path) -> None:
    for number in range(3):
        arrive(files, str(number), f"a\nfile{number}\n")
    path = tmp_path / "db"
    with headrace.connect(path) as db:
        words(db)
    script = tmp_path / "victim.py"
    script.write_text(textwrap.dedent(_VICTIM))

    def run(deaths: int) -> int:
        command = [sys.executable, str(script), str(path), str(files), str(deaths)]
        return subprocess.run(command, timeout=500, check=False).returncode

    assert run(2) == -signal.SIGKILL
    with headrace.connect(path) as db:
        assert counts(db) == {"a": 2, "file0": 1, "file1": 1}
    assert run(99) == 0
    with headrace.connect(path) as db:
        assert counts(db) == {"a": 3, "file0": 1, "file1": 1, "file2": 1}
