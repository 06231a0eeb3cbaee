"""Kept samples fed by Spark: tasks over slices of files, DataFrames, conditions only Spark knows, attachments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Iterator[Database]:
    with headrace.connect(tmp_path / "db", spark=spark, task_bytes=1_000) as db:
        db.sql("CREATE STREAM s (id BIGINT, t STRING)")
        db.sql("CREATE SAMPLE r OF s SIZE 50")
        db.sql("CREATE SAMPLE odd OF s SIZE 20 WHERE id % 2 = 1 GROUP BY t")
        # Only Spark knows this function, so Spark SQL evaluates the condition.
        db.sql("CREATE SAMPLE later OF s SIZE 30 WHERE regexp_count(t, 'x') = 1 AND id >= 1000")
        yield db


def table(start: int, end: int) -> pa.Table:
    return pa.table(
        {"id": np.arange(start, end), "t": pa.array(["xa", "yb"]).take(pa.array(np.arange(start, end) % 2))}
    )


def check(db: Database, rows: int) -> None:
    seen = dict(db.sql("SELECT name, rows_seen FROM headrace.samples").rows())
    assert seen == {"r": rows, "odd": rows // 2, "later": (rows - 1_000) // 2}
    for sample, size in (("r", 50), ("odd", 20), ("later", 30)):
        found = db.sql(f"SELECT id, t FROM {sample}").rows()
        assert len({i for i, _ in found}) == len(found) == size
        assert all(t == ("xa", "yb")[i % 2] for i, t in found)
    assert all(i % 2 == 0 and i >= 1_000 for i, _ in db.sql("SELECT id, t FROM later"))


def test_files_by_tasks_and_frames(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(table(0, 40_000), tmp_path / "a.parquet", row_group_size=2_000)
    db.sql(f"COPY s FROM '{tmp_path}/a.parquet'")
    assert db.sql("SELECT insert_place FROM headrace.samples WHERE name = 'r'").rows() == [("native in Spark tasks",)]
    check(db, 40_000)
    db.insert("s", spark.range(40_000, 60_000, 1, 3).selectExpr("id", "IF(id % 2 = 0, 'xa', 'yb') AS t"))
    check(db, 60_000)
    db.insert("s", table(60_000, 60_100))
    check(db, 60_100)


def test_an_attachment_feeds_samples_once(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        pq.write_table(table(number * 1_000, number * 1_000 + 1_000), folder / f"{number}.parquet")
    frame = spark.readStream.schema("id BIGINT, t STRING").option("maxFilesPerTrigger", 1).parquet(str(folder))
    for _ in range(2):  # the second run finds all batches committed
        attached = db.attach(frame, "s", trigger={"availableNow": True})
        attached.awaitTermination(500)
    check(db, 3_000)


def test_a_sample_is_read_from_spark(db: Database) -> None:
    db.insert("s", table(0, 30))
    assert sorted(row.id for row in db.table("r").collect()) == list(range(30))
