"""The bars Headrace is held to, and whether each is met. A miss is shown like the rest.

>>> str(at_least("speed", 7.5, 6, "x")), str(at_most("p50", 12.0, 10, " ms"))
('speed: 7.50x (bar: at least 6x): met', 'p50: 12.00 ms (bar: at most 10 ms): MISSED')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench import cdc, ring, sample, tables
from bench.measure import Outcome, geometric_mean, ratios
from bench.memory import Memory
from bench.move import Moves
from bench.plant import PlantResult
from bench.refresh import Refresh
from bench.ring import RingResult
from bench.telephone import Aim
from bench.views import COUNTS, Views

TASKS = "Headrace by Spark tasks"
IN_PROCESS = "Headrace in process"
STREAMING = "Spark Structured Streaming"
FLINK = "Flink"
DUCKDB = "DuckDB once"

# By format: who, beside whom, how many times as fast.
TPCH_BARS = {
    "csv": ((TASKS, FLINK, 7.0), (TASKS, STREAMING, 6.0), (TASKS, DUCKDB, 0.7)),
    "parquet": ((TASKS, STREAMING, 6.0), (IN_PROCESS, DUCKDB, 0.7)),
}
FORMAT_NAMES = {"csv": "CSV", "parquet": "Parquet"}
INSERT_P50_MS = 10.0
READ_P50_MS = 20.0
AIM_P50_MS = 50.0
AIM_P99_MS = 300.0
AIM_HELD = 0.99
REFRESH_WHOLE = {"DuckDB": 10.0, "Spark": 100.0}
REFRESH_ONE = {"DuckDB": 20.0}
VIEWS_GROWTH = 12.0
MOVE_IDLE = 1.05
MOVE_OVERHEAD = 15.0
MOVE_SMALL = 100_000_000
MOVE_WORTH = 0.3
MOVE_SECONDS = 20.0
# Resident memory wobbles with allocators and compaction; ten per cent over 40 M rows is no growth with rows.
MEMORY_GROWTH = 1.10
# How many times as fast as its peers a sample of lineitem in Parquet is drawn.
SAMPLE_SPEED = {sample.SORTED: 5.0, sample.TAKEN: 5.0, sample.FRACTION: 1.0}
SAMPLE_OF_DUCKDB = 1.5
SAMPLE_ARROW = 5.0
SAMPLE_SELECTED_US = 1.0
SAMPLE_WORKERS = 1.8  # of two; linear is 2
CDC_SPEED = 5.0
TABLES_READ = 1.2
TABLES_COPIED = 3.0
TABLES_GROWN = 100.0
RING_QUERIES = 4.0
RING_ARROW = 8.0
RING_CSV = 4.5
RING_OVERHEAD = 40.0
RING_FOUR = {"same file": 1.5, "file of four": 2.0}


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure held against one bar."""

    what: str
    figure: float
    bar: float
    unit: str
    met: bool
    bound: str

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{self.what}: {self.shown} (bar: {self.bound} {self.bar:g}{self.unit}): {verdict}"

    @property
    def shown(self) -> str:
        return f"{self.figure:.2f}{self.unit}"


def at_least(what: str, figure: float, bar: float, unit: str) -> Bar:
    return Bar(what, figure, bar, unit, figure >= bar, "at least")


def at_most(what: str, figure: float, bar: float, unit: str) -> Bar:
    return Bar(what, figure, bar, unit, figure <= bar, "at most")


def tpch_bars(outcomes: Mapping[str, Outcome], format: str) -> list[Bar]:
    """Geometric means over the queries both systems ran."""
    bars = []
    for system, reference, bar in TPCH_BARS[format]:
        speeds = ratios(outcomes, system, reference)
        if speeds:
            share = "" if len(speeds) == len(outcomes) else f" ({len(speeds)} of {len(outcomes)} queries)"
            what = f"TPC-H from {FORMAT_NAMES[format]}: {system}, speed relative to {reference}{share}"
            bars.append(at_least(what, geometric_mean(speeds), bar, "x"))
    return bars


def plant_bars(result: PlantResult) -> list[Bar]:
    return [
        at_most("plant: insert of 1,000 rows, durable, p50", 1e3 * result.inserts.p50, INSERT_P50_MS, " ms"),
        at_most(f"plant: read with {result.groups:,} groups, p50", 1e3 * result.reads.p50, READ_P50_MS, " ms"),
    ]


def aim_bars(results: Sequence[Aim]) -> list[Bar]:
    bars = []
    for result in results:
        if result.name == "Headrace":
            what, reads = f"AIM at {result.offered:,.0f} events/s", result.all_reads
            bars += [
                at_least(f"{what}: taken in of what was offered", result.acknowledged / result.offered, AIM_HELD, "x"),
                at_most(f"{what}: read after new input, p50", 1e3 * reads.p50, AIM_P50_MS, " ms"),
                at_most(f"{what}: read after new input, p99", 1e3 * reads.p99, AIM_P99_MS, " ms"),
            ]
    return bars


def refresh_bars(result: Refresh) -> list[Bar]:
    bars = []
    kinds = (("the whole view", result.whole, REFRESH_WHOLE), ("one group", result.one, REFRESH_ONE))
    for what, timings, wanted in kinds:
        for peer, bar in wanted.items():
            ratio = timings[peer].median / timings["Headrace"].median
            bars.append(at_least(f"refresh, {what}: speed relative to {peer}", ratio, bar, "x"))
    return bars


def views_bar(result: Views) -> Bar:
    return at_most(
        f"{COUNTS[-1]} views on one stream, cost relative to one", result.growth(COUNTS[-1]), VIEWS_GROWTH, "x"
    )


def ring_bars(result: RingResult) -> list[Bar]:
    bars = [
        at_least("ring: tuples of 16 columns from Arrow, a core", result.arrow_per_second / 1e6, RING_ARROW, " M/s")
    ]
    spark = result.ingest[ring.SPARK].median / result.ingest[ring.HEADRACE].median
    bars.append(
        at_least("ring: ingest of all columns from CSV, speed relative to Spark to nowhere", spark, RING_CSV, "x")
    )
    for peer in (ring.SPARK, ring.FLINK):
        ratio = ring.throughput(result.outcomes, ring.HEADRACE, peer)
        if ratio is not None:
            ran = sum(peer in o.timings for o in result.outcomes.values())
            what = f"ring: queries an hour while inserting relative to {peer} ({ran} of {len(result.outcomes)} queries)"
            bars.append(at_least(what, ratio, RING_QUERIES, "x"))
    overhead = result.mean_overhead()
    if overhead is not None:
        bars.append(at_most("ring: what a query costs on top of ingest, mean", 100 * overhead, RING_OVERHEAD, " %"))
    for what, ratio in result.four.get(ring.HEADRACE, {}).items():
        bar = next(b for name, b in RING_FOUR.items() if name in what)
        bars.append(at_least(f"ring: Q6's columns alone ({what}), speed relative to all columns", ratio, bar, "x"))
    return bars


def move_bars(result: Moves) -> list[Bar]:
    bars = []
    if result.plain:
        shortest = min(result.local(name) for name in result.plain)
        bars.append(at_least("move: shortest of the queries moved, plain Spark", shortest, MOVE_SECONDS, " s"))
        pairs = result.pairs()
        what = f"move: headrace.run, nothing suspended, relative to plain Spark ({len(pairs)} pairs)"
        bars.append(at_most(what, geometric_mean(pairs), MOVE_IDLE, "x"))
    small = [100 * move.overhead for move in result.moves if move.needed_bytes < MOVE_SMALL]
    if small:
        what = f"move: states under 100 MB ({len(small)} moves), mean overhead, of local runtime"
        bars.append(at_most(what, fmean(small), MOVE_OVERHEAD, " %"))
    late = [move.beats_restart for move in result.moves if move.progress >= MOVE_WORTH]
    if late:
        what = f"move: from 30 % of pipelines on ({len(late)} moves), speed relative to starting again"
        bars.append(at_least(what, geometric_mean(late), 1.0, "x"))
    return bars


def memory_bars(results: Sequence[Memory], lineitem: Memory) -> list[Bar]:
    rows = max(result.rows[-1] for result in results)
    growth = max(result.growth for result in results)
    through = f"memory while {lineitem.rows[-1]:,} rows stream through Q1, last tenth over second"
    return [
        at_most(f"memory over {rows:,} rows, last tenth over second", growth, MEMORY_GROWTH, "x"),
        at_most(through, lineitem.growth, MEMORY_GROWTH, "x"),
    ]


def tables_bars(result: tables.Tables) -> list[Bar]:
    bars = []
    for reader in (tables.SQL, tables.FRAME):
        times = [by[reader].median / by[tables.SPARK].median for by in result.whole.values()]
        bars.append(
            at_most(f"tables: {reader}, time relative to {tables.SPARK}", geometric_mean(times), TABLES_READ, "x")
        )
    bars.append(at_most("tables: growth of this process while Spark reads", result.grown, TABLES_GROWN, " MB"))
    mine, its = result.written[tables.COPY]
    bars.append(at_least(f"tables: {tables.COPY}, speed", its.median / mine.median, TABLES_COPIED, "x"))
    return bars


def sample_bars(result: sample.Samples) -> list[Bar]:
    mine = result.parquet[sample.HEADRACE].median
    selected = "sample: time of a selected row, in memory, one thread"
    bars = [at_most(selected, 1e6 * result.selected, SAMPLE_SELECTED_US, " µs")]
    for peer, bar in SAMPLE_SPEED.items():
        if peer in result.parquet:
            least = " (stopped: at least)" if peer == sample.TAKEN and result.stopped else ""
            speed = result.parquet[peer].median / mine
            bars.append(at_least(f"sample: from Parquet, speed relative to {peer}{least}", speed, bar, "x"))
    beyond = (mine - result.job.median) / result.parquet[sample.DUCKDB].median
    what = "sample: from Parquet, time without a Spark job's fixed cost, relative to DuckDB"
    bars.append(at_most(what, beyond, SAMPLE_OF_DUCKDB, "x"))
    arrow = result.arrow[sample.DUCKDB].median / result.arrow[sample.HEADRACE].median
    bars.append(at_least("sample: from Arrow in memory, speed relative to DuckDB", arrow, SAMPLE_ARROW, "x"))
    most = max(result.by_workers)
    if most > 1:
        what = f"sample: {most} workers on Spark, speed relative to one, without one's fixed cost"
        speed = result.scan_seconds(1) / result.scan_seconds(most)
        bars.append(at_least(what, speed, SAMPLE_WORKERS * most / 2, "x"))
    return bars


def cdc_bars(result: cdc.Cdc) -> list[Bar]:
    """Changes applied, beside Spark's rewrite of the table."""
    return [at_least(f"{name} / Spark", result.times(name), CDC_SPEED, "x") for name in (cdc.ARROW, cdc.FRAME)]
