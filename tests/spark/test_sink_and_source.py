"""``format("headrace")``: any Spark application writes into streams, reads relations and follows their changes."""

from __future__ import annotations

import datetime
import decimal
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.engine.failures import from_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    headrace.register(spark)
    yield spark


def make(path: Path) -> None:
    with headrace.connect(path) as db:
        db.sql("CREATE STREAM s (word STRING)")
        db.sql("CREATE VIEW v AS SELECT word, count(*) AS n FROM s GROUP BY word")


def arrive(files: Path, name: str, text: str) -> None:
    files.mkdir(exist_ok=True)
    (files / f".{name}").write_text(text)
    (files / f".{name}").rename(files / name)


def lines(spark: SparkSession, files: Path) -> DataFrame:
    return spark.readStream.text(str(files)).withColumnRenamed("value", "word")


def feed(frame: DataFrame, path: Path, checkpoint: Path, **options: str) -> None:
    """Run a query over what is there."""
    writer = (
        frame.writeStream.format("headrace").option("path", str(path)).option("checkpointLocation", str(checkpoint))
    )
    for key, value in {"stream": "s", **options}.items():
        writer = writer.option(key, value)
    writer.trigger(availableNow=True).start().awaitTermination(500)


def counts(rows: Any) -> dict[str, int]:
    return {word: n for word, n, *_ in rows}


def roll_back(checkpoint: Path, batch: int) -> None:
    """As if the application had died before Spark noted that a batch was done."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def condition_of(error: Exception) -> str:
    return from_spark(error).condition


def test_the_sink_feeds_an_open_database_and_one_nobody_has_open(session: SparkSession, tmp_path: Path) -> None:
    path, files, checkpoint = tmp_path / "db", tmp_path / "in", tmp_path / "checkpoint"
    make(path)
    arrive(files, "1", "a\nb\na\n")
    with headrace.connect(path, spark=session) as db:
        feed(lines(session, files), path, checkpoint)
        assert counts(db.sql("SELECT * FROM v")) == {"a": 2, "b": 1}
        roll_back(checkpoint, 0)
        feed(lines(session, files), path, checkpoint)
        assert counts(db.sql("SELECT * FROM v")) == {"a": 2, "b": 1}
    arrive(files, "2", "c\n")
    feed(lines(session, files), path, checkpoint)
    roll_back(checkpoint, 1)
    feed(lines(session, files), path, checkpoint)
    with headrace.connect(path, spark=session) as db:
        assert counts(db.sql("SELECT * FROM v")) == {"a": 2, "b": 1, "c": 1}
        session.createDataFrame([("a",)], "word STRING").write.format("headrace").mode("append").option(
            "stream", "s"
        ).save(str(path))
        assert counts(db.sql("SELECT * FROM v"))["a"] == 3
        db.drain()  # the porter lets go of the tray a moment after the batch is in
        assert not list((path / "inbox").glob("job-*"))


def test_a_batch_the_owner_refuses_fails_in_spark_and_is_not_lost(session: SparkSession, tmp_path: Path) -> None:
    path, files, checkpoint = tmp_path / "db", tmp_path / "in", tmp_path / "checkpoint"
    make(path)
    arrive(files, "1", "x\n")
    with headrace.connect(path, spark=session) as db:
        db.sql("CREATE VIEW numbers AS SELECT sum(cast(word AS INT)) AS n FROM s")
        with pytest.raises(Exception, match="CAST_INVALID_INPUT") as caught:
            feed(lines(session, files), path, checkpoint)
        assert condition_of(caught.value) == "CAST_INVALID_INPUT"
        assert counts(db.sql("SELECT * FROM v")) == {}
        db.sql("DROP VIEW numbers")
        feed(lines(session, files), path, checkpoint)
        assert counts(db.sql("SELECT * FROM v")) == {"x": 1}


def test_what_cannot_be_written_or_read(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "db"
    make(path)
    with headrace.connect(path) as db:
        db.sql("CREATE TABLE t (a INT)")
        db.sql("CREATE STREAM two (word INT, n DATE)")

    def writing(frame: DataFrame, **options: str) -> str:
        with pytest.raises(Exception) as caught:
            writer = frame.write.format("headrace").mode("append")
            writer.options(**{"path": str(path), **options}).save()
        return str(caught.value)

    def reading(**options: str) -> str:
        with pytest.raises(Exception) as caught:
            session.read.format("headrace").options(**{"path": str(path), **options}).load()
        return str(caught.value)

    word = session.createDataFrame([("a",)], "word STRING")
    assert "[CANNOT_INSERT_INTO_VIEW]" in writing(word, stream="v")
    assert "[WRONG_COMMAND_FOR_OBJECT_TYPE]" in writing(word, stream="t")
    assert "[NO_STREAM]" in writing(word)
    assert "[NO_DATABASE]" in writing(word, stream="s", path=str(tmp_path / "none"))
    misfit = writing(word.selectExpr("word", "1 AS extra"), stream="two")
    for part in ("[INSERT_TYPE_MISMATCH]", "column word is int", "no column extra", "the DataFrame has no column n"):
        assert part in misfit
    assert "[TABLE_OR_VIEW_NOT_FOUND]" in reading(view="nothing")
    assert "[WRONG_COMMAND_FOR_OBJECT_TYPE]" in reading(view="s")
    assert "[NO_RELATION]" in reading()


def test_rows_are_read_with_their_types_from_whoever_has_them(session: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "db"
    moment = datetime.datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=datetime.UTC)
    row = (1, decimal.Decimal("2.50"), "x", b"\x00", datetime.date(2024, 2, 29), moment, None)
    read = session.read.format("headrace").option("path", str(path))
    with headrace.connect(path, spark=session) as db:
        db.sql(
            "CREATE TABLE t (i INT, d DECIMAL(9,2), s STRING, b BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ)"
        )
        db.insert("t", [row])
        frame = read.option("table", "t").load()
        assert frame.schema == db.table("t").schema
        assert frame.collect() == db.table("t").collect()
        assert frame.count() == 1
        db.insert("t", [row])
        assert read.option("table", "t").load().count() == 2
    assert read.option("table", "t").load().where("i = 1").count() == 2  # nobody has it open: the reader opens it


def follow(spark: SparkSession, path: Path, checkpoint: Path) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of each batch that a query over the view's changes has left to do."""
    batches: dict[int, list[tuple[Any, ...]]] = {}

    def collect(frame: DataFrame, number: int) -> None:
        batches[number] = sorted(tuple(row) for row in frame.collect())

    frame = spark.readStream.format("headrace").option("path", str(path)).option("changes", "v").load()
    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination(500)
    return batches


def test_a_views_changes_add_up_to_it_and_are_the_same_again(session: SparkSession, tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "db", tmp_path / "checkpoint"
    make(path)
    with headrace.connect(path, spark=session) as db:
        db.insert("s", [("a",), ("b",)])
        first = follow(session, path, checkpoint)
        assert [(w, n, weight) for w, n, _, weight in first[0]] == [("a", 1, 1), ("b", 1, 1)]
        db.insert("s", [("a",)])
        db.insert("s", [("a",)])
        second = follow(session, path, checkpoint)
        assert [(w, n, weight) for w, n, _, weight in second[1]] == [("a", 1, -1), ("a", 3, 1)]
        assert {epoch for _, _, epoch, _ in second[1]} == {db.rows_at("v")[0]}
        roll_back(checkpoint, 1)
        db.insert("s", [("c",)])
        again = follow(session, path, checkpoint)
        assert again[1] == second[1] and [row[:2] for row in again[2]] == [("c", 1)]
        batch = session.read.format("headrace").option("path", str(path)).option("changes", "v").load()
        assert sorted(map(tuple, batch.collect())) == sorted(first[0] + second[1] + again[2])
        db.sql("DROP VIEW v")
        db.sql("CREATE VIEW v AS SELECT word, count(*) AS n FROM s GROUP BY word")
        with pytest.raises(Exception, match="RELATION_REPLACED"):
            follow(session, path, checkpoint)


def test_a_sink_whose_commit_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """The commit's process dies after it has put the batch: Spark does not know, and sends it again."""
    from headrace.spark.source import HeadraceSource

    path, files, checkpoint = tmp_path / "db", tmp_path / "in", tmp_path / "checkpoint"
    died = str(tmp_path / "died")
    make(path)
    arrive(files, "1", "a\n")

    class Mortal(HeadraceSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            from headrace.stream.inbox import Tray

            put = Tray.put

            def put_and_die(*given: Any, **options: Any) -> Any:
                result = put(*given, **options)
                if not os.path.exists(died):
                    open(died, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            Tray.put = put_and_die  # type: ignore[method-assign]
            return super().streamWriter(schema, overwrite)

    mortal = spark.newSession()
    mortal.dataSource.register(Mortal)
    with headrace.connect(path, spark=spark) as db:
        with pytest.raises(Exception, match="STREAM_FAILED"):
            feed(lines(mortal, files), path, checkpoint)
        assert os.path.exists(died)
        arrive(files, "2", "b\n")
        feed(lines(mortal, files), path, checkpoint)
        assert counts(db.sql("SELECT * FROM v")) == {"a": 1, "b": 1}
