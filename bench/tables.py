"""A table's rows where Spark reads and writes them, beside Spark over files of its own: TPC-H's lineitem.

Reading: the same queries by Spark over the very Parquet files the table consists of. Headrace's side runs all of them
by Spark SQL (``engine='spark'``), and once more as a program would that aggregates ``db.table("lineitem")``. Then one
row in a hundred is deleted; Spark by itself, which knows of no deletions, still reads all of them. How much this
process grows meanwhile is its resident set after the queries less that before.

Writing: COPY of CSV beside ``read.csv(schema).write.parquet``, and a DataFrame inserted beside ``df.write.parquet``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from bench.measure import Note, Stopwatch, Timing, check_equal
from bench.memory import resident_megabytes
from bench.ours import BY_TASKS, database
from bench.tpch import LINEITEM, QUERIES, Data, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace import Database

SQL, FRAME, SPARK = "Headrace, SQL by Spark", "db.table as a DataFrame", "Spark over the same files"
COPY, INSERT = "COPY and read.csv to write.parquet", "db.insert of a DataFrame and df.write.parquet"
NAMES = ("Q1", "Q6", "Q15")
DELETED = "DELETE FROM lineitem WHERE l_orderkey % 100 = 3"


@dataclass(frozen=True, slots=True)
class Tables:
    """Seconds by query and reader, before and after rows were deleted; seconds by way of writing, ours and Spark's."""

    whole: Mapping[str, Mapping[str, Timing]]
    holed: Mapping[str, Mapping[str, Timing]]
    written: Mapping[str, tuple[Timing, Timing]]
    rows: int
    segments: int
    grown: float
    """MB that this process grew by while the queries ran."""


def run(spark: SparkSession, data: Data, runs: int, note: Note) -> Tables:
    written = {
        COPY: _copied(spark, data.lineitem("csv"), runs, note),
        INSERT: _inserted(spark, data.lineitem("parquet"), runs, note),
    }
    with database(spark, engine="spark") as db:
        db.sql(f"CREATE TABLE lineitem ({ddl(LINEITEM)})")
        rows = db.insert("lineitem", spark.read.parquet(str(data.lineitem("parquet"))))
        segments = [str(file) for file in (db.path / "segments").iterdir()]
        _read(spark, db, segments, 0, note)
        before = resident_megabytes()
        whole = _read(spark, db, segments, runs, note)
        grown = resident_megabytes() - before
        db.sql(DELETED)
        holed = _read(spark, db, segments, runs, note, all_alike=False)
    return Tables(whole, holed, written, rows, len(segments), grown)


def _read(
    spark: SparkSession, db: Database, segments: list[str], runs: int, note: Note, *, all_alike: bool = True
) -> dict[str, dict[str, Timing]]:
    """Each query by each reader, in turns; one run more than is counted."""

    def by_frame(text: str) -> pa.Table:
        db.table("lineitem").createOrReplaceTempView("lineitem")
        return cast(pa.Table, db.spark.sql(text).toArrow())

    def by_spark(text: str) -> pa.Table:
        spark.read.parquet(*segments).createOrReplaceTempView("lineitem")
        return cast(pa.Table, spark.sql(text).toArrow())

    readers: dict[str, Callable[[str], pa.Table]] = {
        SQL: lambda text: db.sql(text).arrow(),
        FRAME: by_frame,
        SPARK: by_spark,
    }
    found: dict[str, dict[str, Timing]] = {}
    for name in NAMES:
        watches = {reader: Stopwatch() for reader in readers}
        for turn in range(runs + 1):
            answers = []
            for reader, ask in readers.items():
                watch = watches[reader] if turn else Stopwatch()
                with watch.timed():
                    answer = ask(QUERIES[name].grouped)
                if all_alike or reader != SPARK:
                    answers.append((reader, answer))
                note(f"{name}, {reader}: {watch.seconds[-1]:.2f} s")
            check_equal(name, answers)
        found[name] = {reader: watch.timing for reader, watch in watches.items() if watch.seconds}
    return found


def _copied(spark: SparkSession, file: Path, runs: int, note: Note) -> tuple[Timing, Timing]:
    def theirs(folder: str) -> None:
        spark.read.schema(ddl(LINEITEM)).csv(str(file), header=True).write.parquet(folder)

    return _both(spark, COPY, lambda db: db.copy("lineitem", file, header=True), theirs, runs, note)


def _inserted(spark: SparkSession, file: Path, runs: int, note: Note) -> tuple[Timing, Timing]:
    frame = spark.read.parquet(str(file))
    return _both(
        spark, INSERT, lambda db: db.insert("lineitem", frame), lambda folder: frame.write.parquet(folder), runs, note
    )


def _both(
    spark: SparkSession,
    what: str,
    ours: Callable[[Database], object],
    theirs: Callable[[str], None],
    runs: int,
    note: Note,
) -> tuple[Timing, Timing]:
    """A new database and a new folder each run, in turns, after one run of each that is not counted."""
    watches = Stopwatch(), Stopwatch()
    for turn in range(runs + 1):
        mine, its = watches if turn else (Stopwatch(), Stopwatch())
        with database(spark, **BY_TASKS) as db:
            db.sql(f"CREATE TABLE lineitem ({ddl(LINEITEM)})")
            with mine.timed():
                ours(db)
            rows = db.sql("SELECT count(*) FROM lineitem").rows()[0][0]
        folder = tempfile.mkdtemp(prefix="headrace-bench-")
        try:
            with its.timed():
                theirs(f"{folder}/rows")
            there = spark.read.parquet(f"{folder}/rows").count()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if rows != there:
            raise AssertionError(f"{what}: Headrace has {rows} rows, Spark {there}")
        note(f"{what}: Headrace {mine.seconds[-1]:.2f} s, Spark {its.seconds[-1]:.2f} s")
    return watches[0].timing, watches[1].timing
