"""Refresh against recompute: 1,000 new rows after many, and the view is asked again.

Headrace inserts the rows and reads the view, whole or one group of it. DuckDB appends them to a table that has all
rows so far and computes the same query; Spark computes it over Parquet files. Inserts are timed on their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Note, Stopwatch, Timing, check_equal
from bench.ours import database
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "k BIGINT, a BIGINT, b BIGINT"
VIEW = "SELECT k, count(*) AS n, sum(a) AS total, min(b) AS low, max(b) AS high FROM rows GROUP BY k"
ONE = "SELECT k, count(*) AS n, sum(a) AS total, min(b) AS low, max(b) AS high FROM rows WHERE k = {k} GROUP BY k"
NEW_ROWS = 1_000
CHUNK = 1_000_000


@dataclass(frozen=True, slots=True)
class Refresh:
    """Timings by system: of the insert (none for Spark), of the whole view, of one group."""

    rows: int
    groups: int
    inserts: dict[str, Timing]
    whole: dict[str, Timing]
    one: dict[str, Timing]


def batch(rows: int, groups: int, turn: int) -> pa.Table:
    rng = np.random.default_rng([7, turn])
    columns = {"k": groups, "a": 1_000, "b": 1_000_000}
    return pa.table({name: pa.array(rng.integers(0, high, rows)) for name, high in columns.items()})


def history(rows: int, groups: int) -> Iterator[pa.Table]:
    """What was seen before, in chunks; the first one has every group."""
    for turn, start in enumerate(range(0, rows, CHUNK)):
        chunk = batch(min(CHUNK, rows - start), groups, turn)
        if turn == 0:
            keys = chunk["k"].to_numpy().copy()
            keys[:groups] = np.arange(groups)
            chunk = chunk.set_column(0, "k", pa.array(keys))
        yield chunk


def run(spark: SparkSession, rows: int, groups: int, runs: int, spark_runs: int, note: Note) -> Refresh:
    """``runs`` rounds; in each both Headrace and DuckDB get the same new rows before each read."""
    inserts: dict[str, Stopwatch] = {"Headrace": Stopwatch(), "DuckDB": Stopwatch()}
    whole = {name: Stopwatch() for name in ("Headrace", "DuckDB", "Spark")}
    one = {name: Stopwatch() for name in ("Headrace", "DuckDB", "Spark")}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, database() as db:
        parquet = Path(directory, "parquet")
        parquet.mkdir()
        with duckdb.connect(f"{directory}/rows.duckdb", config={"threads": str(cores())}) as table:
            db.sql(f"CREATE STREAM rows ({COLUMNS})")
            db.sql(f"CREATE VIEW kept AS {VIEW}")
            table.execute(f"CREATE TABLE rows ({COLUMNS})")
            for turn, chunk in enumerate(history(rows, groups)):
                db.insert("rows", chunk)
                _append(table, chunk)
                pq.write_table(chunk, parquet / f"{turn}.parquet")
            note(f"refresh: {rows:,} rows in")

            def add(turn: int) -> None:
                new = batch(NEW_ROWS, groups, 1_000_000 + turn)
                with inserts["Headrace"].timed():
                    db.insert("rows", new)
                with inserts["DuckDB"].timed():
                    _append(table, new)
                pq.write_table(new, parquet / f"new-{turn}.parquet")

            # The first round warms up and is thrown away.
            for turn in range(runs + 1):
                add(2 * turn)
                with whole["Headrace"].timed():
                    ours = db.sql("SELECT * FROM kept").arrow()
                with whole["DuckDB"].timed():
                    theirs = cast(pa.Table, table.sql(VIEW).to_arrow_table())
                if turn in (0, runs):
                    check_equal("the whole view", [("Headrace", ours), ("DuckDB", theirs)])
                add(2 * turn + 1)
                k = turn * 7919 % groups
                with one["Headrace"].timed():
                    ours = db.sql(f"SELECT * FROM kept WHERE k = {k}").arrow()
                with one["DuckDB"].timed():
                    theirs = cast(pa.Table, table.sql(ONE.format(k=k)).to_arrow_table())
                check_equal("one group", [("Headrace", ours), ("DuckDB", theirs)])
            for _ in range(spark_runs + 1):
                spark.read.parquet(str(parquet)).createOrReplaceTempView("rows")
                with whole["Spark"].timed():
                    by_spark = spark.sql(VIEW).toArrow()
                with one["Spark"].timed():
                    spark.sql(ONE.format(k=k)).toArrow()
            check_equal("the whole view", [("Headrace", db.sql("SELECT * FROM kept").arrow()), ("Spark", by_spark)])
            spark.catalog.dropTempView("rows")
    result = Refresh(rows, groups, *(_warm(watches) for watches in (inserts, whole, one)))
    for name in whole:
        note(f"refresh: {name}: whole {1e3 * result.whole[name].p50:.1f} ms, one {1e3 * result.one[name].p50:.1f} ms")
    return result


def _append(table: Any, rows: pa.Table) -> None:
    table.register("new_rows", rows)
    table.execute("INSERT INTO rows FROM new_rows")


def _warm(watches: dict[str, Stopwatch]) -> dict[str, Timing]:
    return {name: Timing(tuple(watch.seconds[1:])) for name, watch in watches.items()}
