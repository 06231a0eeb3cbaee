"""Rows of a table that change: Headrace, DuckDB and Spark beside each other, and rows by key.

One per cent of lineitem is updated, deleted and merged (half of the source's rows matched, half new): by Headrace and
by DuckDB, each in a table of its own in a file, durable when the statement returns; by Spark as the whole table read
from Parquet, changed and written anew, as a user without a table format does it. All three are asked for the same sums
afterwards. Headrace's table has lineitem's primary key, which it checks and keeps an index of; DuckDB's has none, for
its own would slow it down.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.bars import Bar, at_least, at_most
from bench.ours import database
from bench.report import prose, table
from bench.tpch import LINEITEM, ddl
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import headrace

HEADRACE, DUCKDB, SPARK = "Headrace", "DuckDB", "Spark, Parquet rewritten"
KEYS = ("l_orderkey", "l_linenumber")
SPARK_BAR, DUCKDB_BAR = 5.0, 2.0
KEYED_MS, INSERT_BAR = 10.0, 1.5
SUMS = "SELECT count(*), sum(l_quantity), sum(l_orderkey), sum(l_discount), min(l_comment) FROM "
_ON = " AND ".join(f"t.{k} = s.{k}" for k in KEYS)
_MERGE = f"MERGE INTO t USING s ON {_ON} WHEN MATCHED THEN UPDATE SET l_comment = s.l_comment WHEN NOT MATCHED THEN "
_SOURCE = """
    SELECT * REPLACE (CASE WHEN l_orderkey % 2 = 0 THEN -l_orderkey ELSE l_orderkey END AS l_orderkey, '-' AS l_comment)
    FROM t WHERE l_orderkey % 200 IN (15, 16)
"""
STATEMENTS = {
    "UPDATE": "UPDATE t SET l_discount = 0.05, l_comment = 'changed' WHERE l_orderkey % 100 = 7",
    "DELETE": "DELETE FROM t WHERE l_orderkey % 100 = 8",
    "MERGE": _MERGE,
}


@dataclass
class Changes:
    """What was measured; times in seconds."""

    rows: int
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By statement, by system."""
    changed: dict[str, int] = field(default_factory=dict)
    read: list[float] = field(default_factory=list)
    """SELECT of one row by its key, of the larger table."""
    updated: list[float] = field(default_factory=list)
    """UPDATE of one row by its key."""
    inserted: dict[int, list[float]] = field(default_factory=dict)
    """INSERT of 1,000 rows, by how many the table has."""
    scanned: tuple[float, float] = (0.0, 0.0)
    """A scan before a hundredth of the rows was deleted, and after."""

    def median(self, statement: str, system: str) -> float:
        return statistics.median(self.seconds[statement][system])


def run(spark: SparkSession | None, file: Path, keyed: int, runs: int, say: Callable[[str], None]) -> Changes:
    """Measure; ``keyed`` is how many rows the larger keyed table has."""
    with duckdb.connect() as memory:
        rows = memory.sql(f"SELECT {', '.join(LINEITEM)} FROM '{file}'").to_arrow_table()
    result = Changes(rows.num_rows)
    for turn in range(runs):
        _statements(spark, rows, result, turn, say)
    _keyed(result, keyed, say)
    return result


def _timed(took: list[float], work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    found = work()
    took.append(time.perf_counter() - start)
    return found


def _statements(
    spark: SparkSession | None, rows: pa.Table, result: Changes, turn: int, say: Callable[[str], None]
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        with database(engine="native") as db, duckdb.connect(str(directory / "t.duckdb")) as duck:
            duck.execute(f"SET threads = {cores()}")
            db.sql(f"CREATE TABLE t ({ddl(LINEITEM)}, PRIMARY KEY ({', '.join(KEYS)}))")
            db.insert("t", rows)
            duck.execute("CREATE TABLE t AS SELECT * FROM rows")
            source = duck.sql(_SOURCE).to_arrow_table()
            db.sql(f"CREATE TABLE s ({ddl(LINEITEM)})")
            db.insert("s", source)
            duck.execute("CREATE TABLE s AS SELECT * FROM source")
            duck.execute("CHECKPOINT")
            if spark is not None:
                duck.execute(f"COPY t TO '{directory}/t0.parquet'")
                duck.execute(f"COPY s TO '{directory}/s.parquet'")
            scan = "SELECT l_returnflag, sum(l_extendedprice * (1 - l_discount)) FROM t GROUP BY l_returnflag"
            before = min(_seconds(db, scan) for _ in range(3))
            for number, (name, text) in enumerate(STATEMENTS.items()):
                took = result.seconds.setdefault(name, {})
                mine = text + ("INSERT *" if name == "MERGE" else "")
                done = _timed(took.setdefault(HEADRACE, []), lambda mine=mine: db.sql(mine))  # type: ignore[misc]
                result.changed[name] = done.rows()[0][0]
                theirs = text + ("INSERT" if name == "MERGE" else "")
                _timed(took.setdefault(DUCKDB, []), lambda theirs=theirs: duck.execute(theirs))  # type: ignore[misc]
                sums = db.sql(SUMS + "t").rows()
                assert sums == duck.execute(SUMS + "t").fetchall(), name
                if spark is not None:
                    work = lambda n=number, name=name: _rewritten(spark, directory, n, name)  # noqa: E731
                    _timed(took.setdefault(SPARK, []), work)
                    frame = spark.read.parquet(f"{directory}/t{number + 1}.parquet")
                    frame.createOrReplaceTempView("t")
                    assert [tuple(row) for row in spark.sql(SUMS + "t").collect()] == sums, name
                if name == "DELETE":
                    result.scanned = (before, min(_seconds(db, scan) for _ in range(3)))
                said = ", ".join(f"{system} {1e3 * times[-1]:.0f} ms" for system, times in took.items())
                say(f"dml: run {turn + 1}, {name} of {result.changed[name]:,} rows: {said}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _seconds(db: headrace.Database, text: str) -> float:
    start = time.perf_counter()
    db.sql(text).arrow()
    return time.perf_counter() - start


def _rewritten(spark: SparkSession, directory: Path, number: int, name: str) -> None:
    """The same as a new Parquet directory."""
    from pyspark.sql import functions as f

    rows = spark.read.parquet(f"{directory}/t{number}.parquet")
    if name == "UPDATE":
        hit = f.col("l_orderkey") % 100 == 7
        new = {"l_discount": f.lit(0.05).cast("decimal(15,2)"), "l_comment": f.lit("changed")}
        rows = rows.withColumns({column: f.when(hit, v).otherwise(f.col(column)) for column, v in new.items()})
    elif name == "DELETE":
        rows = rows.where("l_orderkey % 100 <> 8")
    else:
        source = spark.read.parquet(f"{directory}/s.parquet")
        given = source.select(*KEYS, f.col("l_comment").alias("given"))
        matched = rows.join(given, list(KEYS), "left").withColumn("l_comment", f.coalesce("given", "l_comment"))
        added = source.join(rows.select(*KEYS), list(KEYS), "left_anti")
        rows = matched.select(*LINEITEM).unionByName(added.select(*LINEITEM))
    rows.write.parquet(f"{directory}/t{number + 1}.parquet")


def _keyed(result: Changes, rows: int, say: Callable[[str], None]) -> None:
    """One row by its key, and 1,000 rows inserted, over tables whose keys lie in no order."""
    rng = np.random.default_rng(7)
    for count in (rows // 100, rows):
        with database(engine="native", durability="group") as db:
            db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, x DOUBLE, name STRING)")
            ids = rng.permutation(count)
            for start in range(0, count, 1_000_000):
                db.insert("t", _keyed_rows(ids[start : start + 1_000_000]))
            took = result.inserted.setdefault(count, [])
            for turn in range(30):
                new = _keyed_rows(np.arange(count + 1000 * turn, count + 1000 * (turn + 1)))
                _timed(took, lambda new=new: db.insert("t", new))  # type: ignore[misc]
            if count == rows:
                for key in rng.integers(0, count, 210).tolist():
                    _timed(result.read, lambda key=key: db.sql(f"SELECT * FROM t WHERE id = {key}").rows())  # type: ignore[misc]
                    update = f"UPDATE t SET a = a + 1 WHERE id = {key}"
                    _timed(result.updated, lambda update=update: db.sql(update))  # type: ignore[misc]
                del result.read[:10], result.updated[:10]
        del took[:5]
    say(f"dml: by key, of {rows:,} rows: read p50 {1e3 * statistics.median(result.read):.2f} ms, "
        f"update p50 {1e3 * statistics.median(result.updated):.2f} ms")  # fmt: skip


def _keyed_rows(ids: np.ndarray[Any, Any]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a": pa.array(ids % 1000, pa.int32()),
            "x": ids / 7,
            "name": pa.array(ids % 10_007).cast(pa.string()),
        }
    )


def bars(result: Changes) -> list[Bar]:
    """What is asked of it."""
    found = []
    for name in STATEMENTS:
        mine = result.median(name, HEADRACE)
        if SPARK in result.seconds[name]:
            faster = result.median(name, SPARK) / mine
            found.append(at_least(f"dml: {name} of 1 %, speed relative to {SPARK}", faster, SPARK_BAR, "x"))
        slower = mine / result.median(name, DUCKDB)
        found.append(at_most(f"dml: {name} of 1 %, time relative to DuckDB", slower, DUCKDB_BAR, "x"))
    few, many = (statistics.median(result.inserted[n]) for n in sorted(result.inserted))
    most = max(result.inserted)
    found.append(at_most(f"dml: SELECT of a row of {most:,} by key, p50", _p50(result.read), KEYED_MS, " ms"))
    found.append(
        at_most(f"dml: UPDATE of a row of {most:,} by key, durable, p50", _p50(result.updated), KEYED_MS, " ms")
    )
    what = f"dml: INSERT of 1,000 rows into {most:,} with a key, time relative to {min(result.inserted):,}"
    return [*found, at_most(what, many / few, INSERT_BAR, "x")]


def _p50(seconds: list[float]) -> float:
    return 1e3 * statistics.median(seconds)


def page(result: Changes) -> list[str]:
    """The section of the page."""
    systems = [s for s in (HEADRACE, DUCKDB, SPARK) if s in result.seconds["UPDATE"]]
    grid = [
        [name, f"{result.changed[name]:,}", *(f"{1e3 * result.median(name, s):.0f}" for s in systems)]
        for name in STATEMENTS
    ]
    inserts = [[f"{n:,}", f"{_p50(result.inserted[n]):.2f}"] for n in sorted(result.inserted)]
    before, after = result.scanned
    return [
        f"## One per cent of {result.rows:,} rows of lineitem, all 16 columns",
        "",
        *table(["", "rows changed", *(f"{s}, ms" for s in systems)], grid),
        "",
        prose(f"""
            Medians of {len(result.seconds["UPDATE"][HEADRACE])} runs over tables made anew; the statements run one
            after the other, so DELETE and MERGE meet what was changed before them. Headrace's and DuckDB's tables are
            files, and the change is durable when the statement returns. A grouping of all rows takes Headrace
            {1e3 * before:.0f} ms before UPDATE and DELETE, {1e3 * after:.0f} ms after: places that are left out are an
            anti-join."""),
        "",
        "## Rows by their primary key",
        "",
        prose(f"""
            A table of {max(result.inserted):,} rows whose keys lie in no order; each statement is a new text, alone,
            with `durability='group'`. SELECT of one row: p50 {_p50(result.read):.2f} ms. UPDATE of one row: p50
            {_p50(result.updated):.2f} ms. INSERT of 1,000 rows, p50 in ms, by how many the table has:"""),
        "",
        *table(["rows", "ms"], inserts),
        "",
    ]
