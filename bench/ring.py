"""Queries of a stream while it is filled, beside batches over the same file (003 §4): Figures 5 and 6, Table 1.

Headrace copies lineitem from CSV into a ring while a query reads it; Spark and Flink run the query as a batch over the
file. All tables but lineitem are there before the clock starts, cached where the system can. A window's timeout is no
work and is not counted (as in 003): the window is ended when the last row is in.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.csv

import headrace
from bench.measure import Note, Outcome, Refused, Timing, check_equal
from bench.peers.flink import Flink
from bench.tpch import LINEITEM, Data, ddl
from headrace.database import Database
from headrace.types import Field, from_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = Path(__file__).resolve().parent.parent / "tests" / "tpch.sql"
NAMES = ("q1", "q3", "q4", "q6", "q7", "q9", "q10", "q12", "q14", "q15", "q19", "q20")
"""The twelve of 003 §4.1: one scan of lineitem each."""
FOUR = {name: LINEITEM[name] for name in ("l_quantity", "l_extendedprice", "l_discount", "l_shipdate")}
"""The columns of Q6."""
CAPACITY = 1 << 18
HEADRACE, SPARK, FLINK = "Headrace", "Spark batch", "Flink batch"

TABLES: dict[str, str] = {
    "orders": "o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus STRING, o_totalprice DECIMAL(15,2), "
    "o_orderdate DATE, o_orderpriority STRING, o_clerk STRING, o_shippriority INT, o_comment STRING",
    "customer": "c_custkey BIGINT, c_name STRING, c_address STRING, c_nationkey BIGINT, c_phone STRING, "
    "c_acctbal DECIMAL(15,2), c_mktsegment STRING, c_comment STRING",
    "supplier": "s_suppkey BIGINT, s_name STRING, s_address STRING, s_nationkey BIGINT, s_phone STRING, "
    "s_acctbal DECIMAL(15,2), s_comment STRING",
    "part": "p_partkey BIGINT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, p_size INT, "
    "p_container STRING, p_retailprice DECIMAL(15,2), p_comment STRING",
    "partsupp": "ps_partkey BIGINT, ps_suppkey BIGINT, ps_availqty INT, ps_supplycost DECIMAL(15,2), ps_comment STRING",
    "nation": "n_nationkey BIGINT, n_name STRING, n_regionkey BIGINT, n_comment STRING",
}
KEYS = {
    "orders": "o_orderkey",
    "customer": "c_custkey",
    "supplier": "s_suppkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey, ps_suppkey",
    "nation": "n_nationkey",
}


def queries() -> dict[str, str]:
    """The texts, the same for every system.

    >>> list(queries())[:3]
    ['q1', 'q3', 'q4']
    """
    found = dict(re.findall(r"^-- (q\d+)\n([^;]*);", TEXTS.read_text(encoding="utf-8"), re.MULTILINE))
    return {name: found[name] for name in NAMES}


@dataclass(slots=True)
class RingResult:
    """What was measured, in seconds unless it says otherwise."""

    rows: int
    arrow_per_second: float = 0.0
    """Tuples of all columns a processor second, from Arrow into the ring."""
    ingest: dict[str, Timing] = field(default_factory=dict)
    """By system: all columns of the CSV file, typed, into the ring or to nowhere."""
    count: dict[str, Timing] = field(default_factory=dict)
    """By system: ``count(*)`` over the file, which 003 takes for ingest."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    beside: dict[str, Timing] = field(default_factory=dict)
    """By query: ingest alone, right before each of its runs, so that a slow minute of the machine slows both."""
    four: dict[str, dict[str, float]] = field(default_factory=dict)
    """By system: how many times as fast with Q6's columns alone, insert and Q6, of the same file and of one that has no
    others. Spark and Flink never read the others' values; what they insert is counted, as in 003."""

    def overhead(self, name: str, system: str = HEADRACE) -> float | None:
        """What a query costs on top of ingest, as a share of it; of Spark and Flink that is ``count(*)``, as in 003."""
        ingest = self.beside.get(name) if system == HEADRACE else self.count.get(system)
        query = self.outcomes[name].timings.get(system)
        return query.median / ingest.median - 1 if query is not None and ingest is not None else None

    def mean_overhead(self, system: str = HEADRACE) -> float | None:
        """The mean over the queries."""
        found = [share for name in self.outcomes if (share := self.overhead(name, system)) is not None]
        return fmean(found) if found else None


def tables_of(data: Data) -> Path:
    """All tables but lineitem, whole, as CSV with header."""
    directory = data.directory / "whole-csv"
    if not directory.exists():
        unfinished = directory.with_name("whole-csv.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        data._generate("csv", ",".join(TABLES), unfinished)
        unfinished.rename(directory)
    return directory


def four_columns(data: Data) -> Path:
    """A file with Q6's columns alone."""
    file = data.directory / "four" / "lineitem.csv"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = dict.fromkeys(FOUR, pa.string())
        options = pa.csv.ConvertOptions(include_columns=list(FOUR), column_types=texts)
        table = pa.csv.read_csv(data.lineitem("csv"), convert_options=options)
        pa.csv.write_csv(table, file, pa.csv.WriteOptions(quoting_style="none"))
    return file


def run(spark: SparkSession, python: Path | None, data: Data, runs: int, note: Note) -> RingResult:
    """All of it, side by side; every answer is checked."""
    file = data.lineitem("csv")
    with headrace.connect(engine="native") as db:
        _load(db, data)
        result = RingResult(_rows(file))
        result.arrow_per_second = arrow_ingest(file, note)
        _spark_tables(spark, data)
        peer = Flink(python, mode="batch") if python else None
        try:
            _ingest(db, spark, peer, data, runs, result, note)
            _queries(db, spark, peer, data, runs, result, note)
            result.four = _four(db, spark, peer, data, runs, note)
        finally:
            if peer is not None:
                peer.__exit__(None, None, None)
    return result


def arrow_ingest(file: Path, note: Note) -> float:
    """Tuples of all 16 columns put into a ring by one thread, a second of its processor."""
    from headrace.rings import Ring  # here, for the rest runs over any version of Headrace
    from headrace.rings.ring import Terms

    fields = tuple(Field(name, from_spark(type.lower())) for name, type in LINEITEM.items())
    types = {f.name: f.type.arrow for f in fields}
    reader = pa.csv.open_csv(
        file, pa.csv.ReadOptions(block_size=32 << 20), convert_options=pa.csv.ConvertOptions(column_types=types)
    )
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        if sum(b.num_rows for b in batches) >= 2_000_000:
            break
    table = pa.Table.from_batches(batches)
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    ring = Ring.create(folder / "ring", "lineitem", fields, Terms(CAPACITY, 1.0))
    try:
        best = 0.0
        for _ in range(4):
            start = time.thread_time()
            ring.write(table)
            best = max(best, table.num_rows / (time.thread_time() - start))
        note(f"ring: {best / 1e6:.1f} M tuples of 16 columns a processor second from Arrow")
        return best
    finally:
        ring.destroy()
        shutil.rmtree(folder, ignore_errors=True)


def _load(db: Database, data: Data) -> None:
    db.sql(f"CREATE STREAM lineitem ({ddl(LINEITEM)}) WITH (capacity = {CAPACITY}, timeout = '60 seconds')")
    for name, columns in TABLES.items():
        db.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({KEYS[name]}))")
        db.copy(name, tables_of(data) / f"{name}.csv", header=True)


def _spark_tables(spark: SparkSession, data: Data) -> None:
    for name, columns in TABLES.items():
        frame = spark.read.schema(columns).option("header", "true").csv(str(tables_of(data) / f"{name}.csv")).cache()
        frame.count()
        frame.createOrReplaceTempView(name)
    frame = spark.read.schema(ddl(LINEITEM)).option("header", "true").csv(str(data.lineitem("csv")))
    frame.createOrReplaceTempView("lineitem")


def _rows(file: Path) -> int:
    with file.open("rb") as source:
        return sum(block.count(b"\n") for block in iter(lambda: source.read(1 << 24), b"")) - 1


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _times(runs: int, run: Callable[[], object]) -> Timing:
    run()
    return Timing(tuple(_timed(run) for _ in range(runs)))


def _ingest(
    db: Database, spark: SparkSession, peer: Flink | None, data: Data, runs: int, result: RingResult, note: Note
) -> None:
    file = data.lineitem("csv")
    result.ingest[HEADRACE] = _times(runs, lambda: db.copy("lineitem", file, header=True))
    to_nowhere = spark.table("lineitem").write.format("noop").mode("overwrite")
    result.ingest[SPARK] = _times(runs, to_nowhere.save)
    result.count[SPARK] = _times(runs, lambda: spark.sql("SELECT count(*) FROM lineitem").collect())
    if peer is not None:
        answer = _flink(peer, data, "SELECT count(*) AS n FROM lineitem")
        answer()
        result.count[FLINK] = Timing(tuple(answer()[0] for _ in range(runs)))
    for name, timing in result.ingest.items():
        note(f"ring: ingest of all columns, {name}: {timing.median:.2f} s")


def _by_spark(spark: SparkSession, sql: str) -> tuple[float, pa.Table]:
    start = time.perf_counter()
    answer = spark.sql(sql).toArrow()
    return time.perf_counter() - start, answer


def _flink(peer: Flink, data: Data, sql: str) -> Callable[[], tuple[float, pa.Table]]:
    files = {name: (columns, tables_of(data) / f"{name}.csv") for name, columns in TABLES.items()}
    files["four"] = ddl(FOUR), four_columns(data)
    tables = {name: [columns, str(_bare(data, name, file).resolve()), None] for name, (columns, file) in files.items()}
    tables["lineitem"] = [ddl(LINEITEM), str(data.bare("lineitem").resolve()), None]
    return lambda: peer.ask_tables(tables, sql)


def _bare(data: Data, name: str, file: Path) -> Path:
    """A table in a directory of its own, without header, as Flink reads it."""
    directory = data.directory / f"whole-bare-{name}"
    if not directory.exists():
        directory.mkdir(parents=True)
        (directory / f"{name}.csv").write_bytes(file.read_bytes().partition(b"\n")[2])
    return directory


def _queries(
    db: Database, spark: SparkSession, peer: Flink | None, data: Data, runs: int, result: RingResult, note: Note
) -> None:
    file = data.lineitem("csv")

    def mine(sql: str) -> tuple[float, pa.Table]:
        start = time.perf_counter()
        running = db.sql(sql)
        db.copy("lineitem", file, header=True)
        answer = cast(Any, running).finish().arrow()
        return time.perf_counter() - start, answer

    for name, sql in queries().items():
        systems: dict[str, Callable[[], tuple[float, pa.Table]]] = {
            HEADRACE: partial(mine, sql),
            SPARK: partial(_by_spark, spark, sql),
        }
        if peer is not None:
            systems[FLINK] = _flink(peer, data, sql)
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        refusals: dict[str, str] = {}
        alone: list[float] = []
        for turn in range(-1, runs):
            answers: list[tuple[str, pa.Table]] = []
            alone.append(_timed(lambda: db.copy("lineitem", file, header=True)))
            for system, ask in systems.items():
                if system in refusals:
                    continue
                try:
                    elapsed, answer = ask()
                except Refused as refusal:
                    refusals[system] = str(refusal)
                    note(f"ring: {name}, {system}: refused: {refusal}")
                    continue
                answers.append((system, answer))
                if turn >= 0:
                    seconds[system].append(elapsed)
                note(f"ring: {name}, {'warm-up' if turn < 0 else f'run {turn + 1}'}, {system}: {elapsed:.2f} s")
            check_equal(name, answers)
        result.beside[name] = Timing(tuple(alone[1:]))
        note(f"ring: {name}: ingest alone {result.beside[name].median:.2f} s")
        result.outcomes[name] = Outcome({system: Timing(tuple(s)) for system, s in seconds.items() if s}, refusals)


def _four(
    db: Database, spark: SparkSession, peer: Flink | None, data: Data, runs: int, note: Note
) -> dict[str, dict[str, float]]:
    """Q6 with the columns it needs alone, by system: how many times as fast as with all sixteen."""
    q6, count = queries()["q6"], "SELECT count(*) AS n FROM lineitem"
    whole, four = data.lineitem("csv"), four_columns(data)
    db.sql(f"CREATE STREAM four ({ddl(FOUR)}) WITH (capacity = {CAPACITY}, timeout = '60 seconds')")
    spark.read.schema(ddl(FOUR)).option("header", "true").csv(str(four)).createOrReplaceTempView("four")
    answers: list[tuple[str, pa.Table]] = []

    def mine(stream: str, copy: str) -> None:
        running = db.sql(q6.replace("FROM lineitem", f"FROM {stream}"))
        db.sql(copy)
        answers.append((HEADRACE, cast(Any, running).finish().arrow()))

    def theirs(system: str, sql: str, table: str) -> float:
        sql = sql.replace("FROM lineitem", f"FROM {table}")
        seconds, found = _by_spark(spark, sql) if peer is None or system == SPARK else _flink(peer, data, sql)()
        if "count" not in sql:
            answers.append((system, found))
        return seconds

    jobs: dict[tuple[str, str, str], Callable[[], float]] = {}
    for what, stream, copy in (
        ("all columns", "lineitem", f"COPY lineitem FROM '{whole}' WITH (header true)"),
        ("same file", "lineitem", f"COPY lineitem ({', '.join(FOUR)}) FROM '{whole}' WITH (header true)"),
        ("file of four", "four", f"COPY four FROM '{four}' WITH (header true)"),
    ):
        jobs[HEADRACE, "insert", what] = partial(_timed, partial(db.sql, copy))
        jobs[HEADRACE, "Q6", what] = partial(_timed, partial(mine, stream, copy))
    for system in (SPARK, *([FLINK] if peer is not None else [])):
        for what, table in (("all columns", "lineitem"), ("file of four", "four")):
            jobs[system, "insert", what] = partial(theirs, system, count, table)
            jobs[system, "Q6", what] = partial(theirs, system, q6, table)
    times: dict[tuple[str, str, str], list[float]] = {key: [] for key in jobs}
    for turn in range(-1, runs):
        for key, job in jobs.items():
            seconds = job()
            if turn >= 0:
                times[key].append(seconds)
    check_equal("q6, four columns", answers)
    median = {key: Timing(tuple(seconds)).median for key, seconds in times.items()}
    found: dict[str, dict[str, float]] = {}
    for (system, kind, what), seconds in median.items():
        note(f"ring: {system}, {kind}, {what}: {seconds:.2f} s")
        if what != "all columns":
            found.setdefault(system, {})[f"{kind}, {what}"] = median[system, kind, "all columns"] / seconds
    return found


def throughput(outcomes: Mapping[str, Outcome], system: str, reference: str) -> float | None:
    """How many times as many queries an hour over those that both ran."""
    both = [o.timings for o in outcomes.values() if system in o.timings and reference in o.timings]
    if not both:
        return None
    return sum(t[reference].median for t in both) / sum(t[system].median for t in both)
