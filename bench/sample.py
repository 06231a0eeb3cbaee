"""A fixed number of random rows of lineitem, beside Spark and DuckDB; and how shares are best drawn (000 §5.3).

All columns of all systems' rows come to this process as Arrow (Spark's ``takeSample`` gives rows; in Scala they stay in
the JVM). ``df.sample`` does not give a fixed number of rows: its fraction is chosen so that ``limit`` has enough, and
the limit takes the first of them, so its rows are not uniform either. It is shown for its speed.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Note, Stopwatch, Timing
from headrace.engine.plan_sql import quote_native
from headrace.engine.tasks import run_each
from headrace.sample import Reservoir, shares
from headrace.sample.gathering import plain_schema
from headrace.sample.on_spark import draw_share, drawn
from headrace.sample.parquet_rows import divided, stretch_of
from headrace.sample.shares import Method
from headrace.sample.skips import Skips
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Key = TypeVar("Key", bound=Hashable)

ROWS = 1_000
"""Rows drawn, where nothing else is said."""
MANY = 10_000
BATCH = 65_536
GENERATED = 1_000_000_000
SIZES = (1, 10, 50, 100, 500, 750, 1_000, 2_000, 10_000)
WORKERS = (1, 4, 16, 64, 256, 1_024)
HEADRACE, SORTED, FRACTION, TAKEN, TAKEN_THERE, DUCKDB = (
    "headrace.reservoir",
    "orderBy(rand()).limit",
    "df.sample.limit (not uniform)",
    "rdd.takeSample",
    "rdd.takeSample in Scala (rows stay in the JVM)",
    "DuckDB reservoir",
)
TAKEN_SECONDS = 240.0
"""After so long rdd.takeSample is stopped: it has taken at least that."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured; times in seconds."""

    rows: int
    parquet: dict[str, Timing]
    job: Timing
    """A Spark job whose tasks do nothing."""
    by_workers: dict[int, Timing]
    fixed: dict[int, Timing]
    """The same calls over a file of the same columns with hardly a row."""
    by_processes: dict[int, Timing]
    """The same rows drawn by so many plain processes, without Spark: what the machine gives."""
    stopped: bool
    """Whether rdd.takeSample was not waited for: its time is then a bound."""
    arrow: dict[str, Timing]
    selected: float
    """For each row selected, by one thread over batches in memory."""
    generated: float
    """Rows a second by one thread, where they are integers nobody looks at."""
    shares: dict[tuple[int, int, str], float]
    """By rows drawn, workers and method."""

    def scan_seconds(self, workers: int) -> float:
        """What so many workers take without what one worker pays in any case.

        What a second worker costs to start stays in: subtracted, it would make adding workers look free.
        """
        return self.by_workers[workers].median - self.fixed[1].median

    def faster(self, size: int, workers: int) -> float:
        """How many times as fast the Fenwick tree is."""
        return self.shares[size, workers, "hypergeometric"] / self.shares[size, workers, "fenwick"]


def run(spark: SparkSession, file: Path, runs: int, slow: bool, note: Note) -> Samples:
    """Measure all of it over one Parquet file; ``slow`` has Spark's takeSample take part, once."""
    note("sample: from Parquet")
    parquet = _parquet(spark, file, runs)
    note("sample: workers")
    by_workers, fixed, job = _workers(spark, file, runs)
    by_processes = _processes(file, 2 * runs)
    stopped = False
    if slow:
        note("sample: rdd.takeSample")
        parquet[TAKEN_THERE], parquet[TAKEN], stopped = _taken(spark, file)
    note("sample: from Arrow in memory")
    table = _in_memory(file)
    arrow = {HEADRACE: _timed(runs, lambda: _reservoir(table, ROWS)), DUCKDB: _timed(runs, lambda: _duck(table))}
    selected = _timed(runs, lambda: _reservoir(table, MANY)).median / (MANY * (1 + np.log(table.num_rows / MANY)))
    generated = GENERATED / _timed(runs, _generate).median
    note("sample: shares")
    grid = {(n, p, m): _share_seconds(n, p, m) for n in SIZES for p in WORKERS for m in ("fenwick", "hypergeometric")}
    return Samples(
        table.num_rows,
        parquet,
        job,
        by_workers,
        fixed,
        by_processes,
        stopped,
        arrow,
        float(selected),
        generated,
        grid,
    )


def _timed(runs: int, work: Callable[[], Any]) -> Timing:
    """Its runs after a first that is not counted."""
    return _in_turns(runs, {"": work})[""]


def _in_turns(runs: int, ways: Mapping[Key, Callable[[], Any]]) -> dict[Key, Timing]:
    """The runs of several, one after the other; their first is not counted."""
    watches = {name: Stopwatch() for name in ways}
    for turn in range(runs + 1):
        for name, way in ways.items():
            if turn == 0:
                way()
                continue
            with watches[name].timed():
                way()
    return {name: watch.timing for name, watch in watches.items()}


def _parquet(spark: SparkSession, file: Path, runs: int) -> dict[str, Timing]:
    from pyspark.sql import functions as f

    frame = spark.read.parquet(str(file))
    total = pq.read_metadata(file).num_rows
    connection = duckdb.connect(config={"threads": cores()})
    text = f"SELECT * FROM '{file}' USING SAMPLE reservoir({ROWS} ROWS)"
    ways: dict[str, Callable[[], pa.Table]] = {
        HEADRACE: lambda: drawn(frame, ROWS)[0],
        SORTED: lambda: frame.orderBy(f.rand()).limit(ROWS).toArrow(),
        FRACTION: lambda: frame.sample(min(1.0, 1.5 * ROWS / total)).limit(ROWS).toArrow(),
        DUCKDB: lambda: connection.sql(text).to_arrow_table(),
    }

    def checked(name: str) -> None:
        found = ways[name]()
        assert found.num_rows == ROWS and found.num_columns == len(frame.columns), name

    timings = _in_turns(runs, {name: partial(checked, name) for name in ways})
    connection.close()
    return timings


def _workers(spark: SparkSession, file: Path, runs: int) -> tuple[dict[int, Timing], dict[int, Timing], Timing]:
    """One worker and all of them: over the file, over one with a group of rows for each, and with nothing to do."""
    frame = spark.read.parquet(str(file))
    counts = (1, cores())
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        small = Path(folder) / "small.parquet"
        first = pa.Table.from_batches([next(pq.ParquetFile(file).iter_batches(ROWS))])
        pq.write_table(first, small, row_group_size=ROWS // cores())
        few = spark.read.parquet(str(small))
        ways: dict[tuple[str, int], Callable[[], Any]] = {}
        for n in counts:
            ways["file", n] = partial(drawn, frame, ROWS, workers=n)
            ways["few", n] = partial(drawn, few, ROWS // 2, workers=n)
        ways["job", 0] = lambda: run_each(spark, cores(), lambda indexes: ((i, "", "", b"") for i in indexes))
        found = _in_turns(2 * runs, ways)
    by = {what: {n: found[what, n] for n in counts} for what in ("file", "few")}
    return by["file"], by["few"], found["job", 0]


def _processes(file: Path, runs: int) -> dict[int, Timing]:
    """One process and as many as there are cores, at what a task does."""
    with ProcessPoolExecutor(cores(), get_context("spawn")) as pool:

        def together(parts: int) -> None:
            list(pool.map(_part, [file] * parts, range(parts), [parts] * parts))

        together(cores())
        return _in_turns(runs, {n: partial(together, n) for n in (1, cores())})


def _part(file: Path, number: int, parts: int) -> None:
    part = divided([stretch_of(str(file))], parts)[number]
    items = ", ".join(map(quote_native, pq.read_schema(file).names))
    list(draw_share(part, ROWS // parts, items, np.random.default_rng()))


def _taken(spark: SparkSession, file: Path) -> tuple[Timing, Timing, bool]:
    """Spark's takeSample, once each: in the JVM, after a warm-up; from Python, where it is stopped after a while."""
    frame = spark.read.parquet(str(file))
    there = _timed(1, partial(frame._jdf.javaRDD().takeSample, False, ROWS))
    context, tag = spark.sparkContext, "takeSample"
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    bell = threading.Timer(TAKEN_SECONDS, context.cancelJobsWithTag, (tag,))
    bell.start()
    start = time.perf_counter()
    try:
        assert len(frame.rdd.takeSample(False, ROWS)) == ROWS
        return there, Timing((time.perf_counter() - start,)), False
    except Exception:
        if time.perf_counter() - start < TAKEN_SECONDS:
            raise
        return there, Timing((TAKEN_SECONDS,)), True
    finally:
        bell.cancel()
        context.removeJobTag(tag)
        context.setInterruptOnCancel(False)


def _in_memory(file: Path) -> pa.Table:
    """All columns, texts in plain buffers, in batches as a stream would bring them."""
    read = pq.ParquetFile(file)
    schema = plain_schema(read.schema_arrow.remove_metadata())
    groups = [read.read_row_group(i).cast(schema) for i in range(read.num_row_groups)]
    return pa.Table.from_batches([b for g in groups for b in g.combine_chunks().to_batches(BATCH)])


def _reservoir(table: pa.Table, size: int) -> pa.Table:
    reservoir = Reservoir(size, np.random.default_rng(), pinned_bytes=1 << 40)  # the rows stay in memory anyhow
    reservoir.add(table)
    return reservoir.rows()


def _duck(lines: pa.Table) -> pa.Table:
    with duckdb.connect(config={"threads": cores()}) as connection:
        return connection.sql(f"SELECT * FROM lines USING SAMPLE reservoir({ROWS} ROWS)").to_arrow_table()


def _generate() -> None:
    skips = Skips(ROWS, np.random.default_rng())
    for _ in range(0, GENERATED, 1 << 20):
        skips.advance(1 << 20)


def _share_seconds(size: int, workers: int, method: Method) -> float:
    """The least time of several draws."""
    rng = np.random.default_rng(1)
    counts = np.full(workers, 900_000_000 // workers)
    shares(counts, size, rng, method)
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        shares(counts, size, rng, method)
        best = min(best, time.perf_counter() - start)
    return best
