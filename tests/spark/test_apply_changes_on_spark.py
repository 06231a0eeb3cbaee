"""``db.apply_changes`` of DataFrames: of a batch, and of a stream, each of whose micro-batches counts once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.errors import CatalogError, DataError
from headrace.spark.attach import Attachment
from headrace.statement.apply import Applied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
NOW = {"availableNow": True}


def arrive(folder: Path, name: str, *messages: dict[str, Any] | None) -> None:
    """A file of messages; Spark takes files by age."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join("\n" if m is None else json.dumps(m) + "\n" for m in messages))
    age = 1_000_000_000 + len(list(folder.iterdir()))
    os.utime(hidden, (age, age))
    hidden.rename(folder / name)


def message(op: str, id: int, a: int | None, lsn: int) -> dict[str, Any]:
    image = {"id": id, "a": a}
    return {"op": op, ("before" if op == "d" else "after"): image, "source": {"lsn": lsn}}


def test_a_stream_of_messages_is_applied_once_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    files, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def messages() -> DataFrame:
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))

    def apply(db: headrace.Database) -> Attachment:
        found = db.apply_changes(
            "t", messages(), format="debezium", initial=[{"id": 9, "a": 9}], checkpoint=checkpoint, trigger=NOW
        )
        assert isinstance(found, Attachment)
        found.awaitTermination(500)
        return found

    def rows(db: headrace.Database) -> list[tuple[Any, ...]]:
        return db.sql("SELECT * FROM t ORDER BY id").rows()

    arrive(files, "1", message("c", 1, 1, 1), message("c", 2, 2, 2))
    arrive(files, "2", message("u", 1, 10, 4), message("d", 2, None, 5))
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
        db.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(a) AS s FROM t")
        first = apply(db)
        assert rows(db) == [(1, 10), (9, 9)]
        epochs = db.sql("SELECT max(epoch) FROM headrace.epochs").rows()
        # As if the process had died before Spark noted that the last batch was done.
        (checkpoint / "commits" / "1").unlink()
        (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
        assert apply(db).id == first.id
        assert db.sql("SELECT max(epoch) FROM headrace.epochs").rows() == epochs
    arrive(files, "3", message("u", 1, 5, 3), message("c", 2, 7, 2), message("c", 3, 3, 6))
    with headrace.connect(tmp_path / "db", spark=spark) as db:
        apply(db)
        assert rows(db) == [(1, 10), (3, 3), (9, 9)]
        assert db.sql("SELECT * FROM v").rows() == [(3, 22)]
        endless = db.apply_changes("t", messages(), format="debezium", query_name="endless")
        with pytest.raises(CatalogError, match="STREAM_IN_USE"):
            db.sql("DROP TABLE t CASCADE")
        assert isinstance(endless, Attachment)
        endless.stop()


def test_a_dataframe_has_no_order_of_its_own(spark: SparkSession) -> None:
    schema = "id INT, a INT, op STRING, lsn INT, more BINARY"
    with headrace.connect(spark=spark) as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a BIGINT)")

        def apply(*changes: tuple[Any, ...], **how: Any) -> Applied:
            frame = spark.createDataFrame([(*change, b"x") for change in changes], schema)
            given = {"op_column": "op", "sequence_by": "lsn", "except_columns": ["more"], **how}
            found = db.apply_changes("t", frame, **given)
            assert isinstance(found, Applied)
            return found

        with pytest.raises(DataError, match="APPLY_CHANGES_NO_SEQUENCE"):
            apply((1, 1, "I", 1), sequence_by=None)
        with pytest.raises(DataError, match=r"APPLY_CHANGES_TIE.*id = 2 have the sequence 2"):
            apply((1, 1, "I", 1), (1, 1, "I", 1), (2, 1, "U", 2), (2, 2, "U", 2))
        # The same change twice is one, whatever comes first.
        assert apply((1, 1, "I", 1), (1, 1, "I", 1), (1, 2, "U", 2), (2, 2, "D", 2)).inserted == 1
        before = [(None, None, "T", 3), (3, 3, "I", 4)]
        apply(*before)
        assert db.sql("SELECT * FROM t").rows() == [(3, 3)]
        image = "STRUCT<id: INT, a: INT>"
        given = [(None, (3, 4), "u", (5,)), ((3, 4), None, "d", (6,)), (None, (4, 4), "c", (7,))]
        frame = spark.createDataFrame(given, f"before {image}, after {image}, op STRING, source STRUCT<lsn: INT>")
        wrapped = frame.selectExpr(
            "named_struct('before', before, 'after', after, 'op', op, 'source', source) AS payload"
        )
        assert db.apply_changes("t", frame, format="debezium") == Applied(
            "t", inserted=1, deleted=1, tombstones=1
        )  # one truncate let another go
        again = db.apply_changes("t", wrapped, format="debezium")
        assert again == Applied("t", unchanged=1, absent=1, late=1, tombstones=1)
