"""Materialized views that follow their tables, beside recomputing: from a change committed to the answer read.

TPC-H's tables, and its 22 queries as materialized views in one database. Orders and their lineitems come, go and
change, as RF1 and RF2 have it and with updates: a third of the orders each, scattered over all keys, by
``apply_changes``, a statement a table. Views are brought up to date within these statements. What a view costs is the
time they spend on making its state rows (``Kept.changed``), its share of adding these in the commit, and then the read.
The same statements run in a database without views, in turns: what they take less is told beside the sum of the parts.
DuckDB and Spark have the same changes in tables of their own (Spark as Parquet files), which is not timed, and run the
query. The answers of all are equal whenever they are asked, or nothing is reported.
"""

from __future__ import annotations

import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

import headrace
from bench.measure import Note, check_equal
from bench.tpch import Data
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = {
    "lineitem": "l_orderkey, l_linenumber",
    "orders": "o_orderkey",
    "customer": "c_custkey",
    "supplier": "s_suppkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey, ps_suppkey",
    "nation": "n_nationkey",
    "region": "r_regionkey",
}
CHANGED = ("orders", "lineitem")
TOGETHER = ("q1", "q3", "q6", "q10", "q14")
FEW = 1_000
"""Rows of the small change."""
SHARE = 0.001
"""The large change, as a share of orders and lineitem."""
LINES = 4
"""Lineitems an order has, about."""
HEADRACE, DUCKDB, SPARK = "Headrace", "DuckDB", "Spark"
MEMORY = 12 << 30
"""State memory at the larger scale: an index of 60 M rows takes 2 GB."""


def queries(root: Path) -> dict[str, str]:
    """TPC-H's 22, as the tests have them."""
    texts = [(root / "tests" / name).read_text(encoding="utf-8") for name in ("tpch.sql", "tpch_more.sql")]
    found = [pair for text in texts for pair in re.findall(r"^-- (q\d+)\n([^;]*);", text, re.MULTILINE)]
    return dict(sorted(found, key=lambda pair: int(pair[0][1:])))


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    runs: int = 5
    few_runs: int = 10
    spark_runs: int = 1
    sizes: tuple[int, ...] = (1, 10, 100, 1_000, 10_000, 100_000)
    share: float = 0.3
    """The largest change of lineitem, after those sizes."""
    sustained: int = 200_000
    """Changes that go into some views together."""


WHOLE = Extent()
QUICK = Extent(runs=1, few_runs=2, sizes=(1, 1_000), share=0.05, sustained=8_000)


@dataclass
class View:
    """One query as a view, at one scale; times in seconds."""

    refused: str | None = None
    incremental: bool = False
    meets: bool = True
    """Whether it reads a table that changes: else there is nothing to do, and so nothing to compare."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """From commit to answer after the change of a share, by system."""
    few: dict[str, list[float]] = field(default_factory=dict)
    """The same after a change of 1,000 rows."""
    state_bytes: int = 0

    def median(self, system: str) -> float:
        return statistics.median(self.seconds[system])

    def times(self, system: str) -> float | None:
        """How many times as fast as a peer."""
        return self.median(system) / self.median(HEADRACE) if system in self.seconds else None


@dataclass
class Scale:
    """All views at one scale factor."""

    scale: float
    rows: int = 0
    table_bytes: int = 0
    """Of the tables' files."""
    changed: int = 0
    """Rows that the change of a share changes."""
    views: dict[str, View] = field(default_factory=dict)
    more: list[float] = field(default_factory=list)
    """Seconds that the statements of the change of a share take more than without views."""
    parts: list[float] = field(default_factory=list)
    """Seconds of that which the views are said to take, all together."""

    @property
    def followed(self) -> dict[str, View]:
        return {name: view for name, view in self.views.items() if view.incremental}

    @property
    def compared(self) -> dict[str, View]:
        """Those of them that a change gives something to do."""
        return {name: view for name, view in self.followed.items() if view.meets}


@dataclass
class Maintained:
    """What was measured."""

    scales: list[Scale] = field(default_factory=list)
    by_size: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    """By query and rows changed: seconds of each way to the answer."""
    moved: dict[int, float] = field(default_factory=dict)
    """Seconds after an update of 1,000 rows, by how many of them move to another group."""
    batches: dict[int, float] = field(default_factory=dict)
    """Seconds to the answer of a batch, by its rows."""
    writer: dict[int, float] = field(default_factory=dict)
    """Seconds of an update of 1,000 rows, by how many views follow the table."""
    unread: dict[int, float] = field(default_factory=dict)
    """The same of a column that no view reads."""
    sustained: tuple[int, float] = (0, 0.0)
    """Changes that went into some views together, and the seconds they took."""


# Data and changes


def _columns(file: Path) -> dict[str, str]:
    """A table's columns and their types, as both systems write them."""
    with duckdb.connect() as db:
        described = db.execute(f"DESCRIBE FROM '{file}'").fetchall()
    return {name: "STRING" if type == "VARCHAR" else type for name, type, *_ in described}


@dataclass
class Change:
    """Rows of a table with what is done to them, in ``op``: I, U or D."""

    rows: dict[str, pa.Table]

    @property
    def count(self) -> int:
        return sum(rows.num_rows for rows in self.rows.values())


class Source:
    """The tables as files, and changes of them: the same whenever they are asked for."""

    def __init__(self, data: Data) -> None:
        self.files = {name: data.whole(name) for name in KEYS}
        self.columns = {name: _columns(file) for name, file in self.files.items()}
        with duckdb.connect() as db:
            self._keys = db.execute(f"SELECT o_orderkey FROM '{self.files['orders']}'").fetchnumpy()["o_orderkey"]
            self.rows = {
                name: db.execute(f"SELECT count(*) FROM '{f}'").fetchall()[0][0] for name, f in self.files.items()
            }
        self._keys = np.random.default_rng(19).permutation(self._keys)

    def change(self, turn: int, orders: int) -> Change:
        """So many orders with their lineitems: a third come, a third change, a third go; others each turn."""
        each = max(orders // 3, 1)
        keys = np.resize(np.roll(self._keys, -3 * each * turn), 3 * each)
        come, change, go = np.split(keys, 3)
        # TPC-H leaves keys free, 24 of 32: those are of the orders that come.
        listed = {"come": pa.table({"k": come}), "change": pa.table({"k": change}), "go": pa.table({"k": go})}
        with duckdb.connect(config={"threads": cores()}) as db:
            for name, rows in listed.items():
                db.register(f"__{name}", rows)
            free = 8 * (1 + turn % 3)
            return Change({name: self._of(db, name, free, turn) for name in CHANGED})

    def _of(self, db: duckdb.DuckDBPyConnection, name: str, free: int, turn: int) -> pa.Table:
        key = KEYS[name].split(", ")[0]
        updated = {
            "orders": "o_shippriority + 1 AS o_shippriority, o_orderdate + 1 AS o_orderdate",
            "lineitem": f"CAST(0.0{5 + turn % 3} AS DECIMAL(15,2)) AS l_discount, "
            "CAST(l_quantity + 1 AS DECIMAL(15,2)) AS l_quantity",
        }[name]
        file = self.files[name]
        casts = ", ".join(
            f"CAST({c} AS {t.replace('STRING', 'VARCHAR')}) AS {c}" for c, t in self.columns[name].items()
        )
        return db.sql(
            f"SELECT {casts}, op FROM ("
            f"SELECT * REPLACE ({key} + {free} AS {key}), 'I' AS op FROM '{file}' SEMI JOIN __come ON {key} = k "
            f"UNION ALL SELECT * REPLACE ({updated}), 'U' FROM '{file}' SEMI JOIN __change ON {key} = k UNION ALL"
            f" SELECT *, 'D' FROM '{file}' SEMI JOIN __go ON {key} = k)"
        ).to_arrow_table()

    def updates(self, count: int, turn: int) -> Change:
        """So many lineitems, anywhere, with another discount."""
        orders = np.resize(np.roll(self._keys, -turn * count), max(count // LINES * 2, 2))
        with duckdb.connect() as db:
            db.register("__keys", pa.table({"k": np.unique(orders)}))
            found = db.sql(
                f"SELECT * REPLACE (CAST(0.0{1 + turn % 9} AS DECIMAL(15,2)) AS l_discount), 'U' AS op "
                f"FROM '{self.files['lineitem']}' SEMI JOIN __keys ON l_orderkey = k LIMIT {count}"
            )
            return Change({"lineitem": found.to_arrow_table()})


# Headrace


class Bases:
    """A database with the tables, and copies of it."""

    def __init__(self, source: Source, folder: Path, settings: Mapping[str, Any]) -> None:
        self._base = folder / "base"
        self._folder = folder
        self._settings = dict(settings)
        self._made = 0
        with headrace.connect(self._base, engine="native", **settings) as db:
            for name, columns in source.columns.items():
                listed = ", ".join(f"{column} {type}" for column, type in columns.items())
                db.sql(f"CREATE TABLE {name} ({listed}, PRIMARY KEY ({KEYS[name]}))")
                db.copy(name, source.files[name])

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in (self._base / "segments").iterdir())

    @contextmanager
    def copy(self, spark: SparkSession | None = None) -> Iterator[headrace.Database]:
        self._made += 1
        place = self._folder / f"copy{self._made}"

        shutil.copytree(self._base, place)
        try:
            with headrace.connect(place, spark=spark, **self._settings) as db:
                yield db
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _applied(db: headrace.Database, change: Change) -> float:
    """Seconds of the statements."""
    start = time.perf_counter()
    for name, rows in change.rows.items():
        if rows.num_rows:
            db.apply_changes(name, rows, op_column="op")
    return time.perf_counter() - start


def _read(db: headrace.Database, name: str) -> tuple[float, pa.Table]:
    start = time.perf_counter()
    rows = db.sql(f"SELECT * FROM {name}").arrow()
    return time.perf_counter() - start, rows


class Timed:
    """What the statements of a database spend on its views."""

    def __init__(self, db: headrace.Database, names: Sequence[str]) -> None:
        self.views = dict.fromkeys(names, 0.0)
        """Seconds for each since :meth:`begin`, the commit apart."""
        self.rest = 0.0
        """Seconds of handing rows over, of adding state rows to the commit and of tidying up."""
        for name in names:
            kept = db._keeper.get(name)
            kept.changed = self._timing(kept.changed, name)
        given = db._runtime.hand_on

        def hand_on(*args: Any) -> Any:
            handing = self._timing(given)(*args)
            handing.add, handing.after = self._timing(handing.add), self._timing(handing.after)
            return handing

        db._runtime.hand_on = hand_on

    def begin(self) -> None:
        self.views, self.rest = dict.fromkeys(self.views, 0.0), 0.0

    def of(self, name: str) -> float:
        """Seconds for a view, with its share of what is done for all."""
        return self.views[name] + (self.rest - sum(self.views.values())) / len(self.views)

    def _timing(self, work: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*args, **named)
            finally:
                took = time.perf_counter() - start
                if name is None:
                    self.rest += took  # the views' own time is in there
                else:
                    self.views[name] += took

        return timed


def _fresh(db: headrace.Database, timed: Timed, name: str, changes: Sequence[Change]) -> list[float]:
    """Seconds from a change committed to the view's answer read, change by change."""
    found = []
    for change in changes:
        timed.begin()
        _applied(db, change)
        found.append(timed.of(name) + _read(db, name)[0])
    return found


def _is_incremental(db: headrace.Database, name: str, text: str) -> bool:
    said = [str(row[0]) for row in db.sql(f"EXPLAIN CREATE MATERIALIZED VIEW {name}_ AS {text}").rows()]
    return not any("not incremental" in line for line in said)


def _state_bytes(db: headrace.Database, name: str) -> int:
    kept = db._keeper.get(name)
    with db._runtime.store.read() as snapshot:
        return sum(state.home.merged(snapshot, state).nbytes for state in kept.states)


# Peers


class InDuckDB:
    """Tables of DuckDB's own, in a file."""

    def __init__(self, source: Source, folder: Path) -> None:
        self._source = source
        self.db = duckdb.connect(str(folder / "peer.duckdb"), config={"threads": cores()})
        for name, columns in source.columns.items():
            listed = ", ".join(f"{c} {t.replace('STRING', 'VARCHAR')}" for c, t in columns.items())
            self.db.execute(f"CREATE TABLE {name} ({listed})")
            self.db.execute(f"INSERT INTO {name} FROM '{source.files[name]}'")
        self.db.execute("CHECKPOINT")

    def apply(self, change: Change) -> None:
        self.db.execute("BEGIN")
        for name, rows in change.rows.items():
            self.db.register("__rows", rows)
            same = " AND ".join(f"t.{k} = r.{k}" for k in KEYS[name].split(", "))
            self.db.execute(f"DELETE FROM {name} AS t USING __rows AS r WHERE {same}")
            self.db.execute(f"INSERT INTO {name} SELECT * EXCLUDE (op) FROM __rows WHERE op IN ('U', 'I')")
            self.db.unregister("__rows")
        self.db.execute("COMMIT")
        self.db.execute("CHECKPOINT")

    def answer(self, text: str) -> tuple[float, pa.Table]:
        start = time.perf_counter()
        rows = self.db.sql(text).to_arrow_table()
        return time.perf_counter() - start, rows


class InSpark:
    """The same tables as Parquet files, written anew after each change."""

    def __init__(self, spark: SparkSession, peer: InDuckDB, folder: Path) -> None:
        self._spark, self._peer, self._folder = spark, peer, folder / "parquet"
        self._folder.mkdir()
        self.taken(KEYS)

    def taken(self, names: Sequence[str] | Mapping[str, object] = CHANGED) -> None:
        """Take the peer's tables over."""
        for name in names:
            file = self._folder / f"{name}.parquet"
            self._peer.db.execute(f"COPY {name} TO '{file}' (ROW_GROUP_SIZE 1000000)")
            self._spark.read.parquet(str(file)).createOrReplaceTempView(name)

    def answer(self, text: str) -> tuple[float, pa.Table]:
        start = time.perf_counter()
        rows = self._spark.sql(text).toArrow()
        return time.perf_counter() - start, rows


# The run


def run(root: Path, scales: Sequence[float], extent: Extent, spark: SparkSession | None, say: Note) -> Maintained:
    """Measure. The first scale has all parts, larger ones the views alone."""
    result = Maintained()
    for number, scale in enumerate(scales):
        source = Source(Data(root / "data", scale))
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            folder = Path(directory)
            settings = {"state_memory": MEMORY} if number else {}
            peer = InDuckDB(source, folder)
            say(f"maintain: SF {scale:g}: {source.rows['lineitem']:,} lineitems in DuckDB")
            bases = Bases(source, folder, settings)
            found = Scale(scale, sum(source.rows[name] for name in CHANGED), bases.bytes)
            result.scales.append(found)
            texts = queries(root)
            few = [source.change(turn, FEW // (LINES + 1)) for turn in range(extent.few_runs + 1)]
            begin = extent.few_runs + 2
            orders = int(source.rows["orders"] * SHARE)
            many = [source.change(begin + turn, orders) for turn in range(extent.runs + 1)]
            found.changed = many[-1].count
            with peer.db:
                answers = _peers(found, peer, spark if not number else None, folder, texts, few, many, extent, say)
            _views(found, bases, spark, texts, few, many, answers, say)
            if not number:
                _beside(result, bases, source, texts, extent, say)
    return result


def _peers(
    found: Scale, peer: InDuckDB, spark: SparkSession | None, folder: Path, texts: Mapping[str, str],
    few: Sequence[Change], many: Sequence[Change], extent: Extent, say: Note,
) -> dict[str, list[pa.Table | None]]:  # fmt: skip
    """Every query after every change, by DuckDB, and by Spark after the last ones; the answers by query."""
    answers: dict[str, list[pa.Table | None]] = {name: [] for name in texts}
    copies = InSpark(spark, peer, folder) if spark is not None else None
    for name, text in texts.items():
        found.views[name] = View(meets=any(re.search(rf"\b{table}\b", text) for table in CHANGED))
        peer.answer(text)
    for turn, change in enumerate([*few, *many]):
        peer.apply(change)
        last = len(few) + len(many) - 1 - turn
        # The queries of the small change are asked after its last ones only: there are many.
        if turn < len(few) - 1 and turn % 5:
            for name in texts:
                answers[name].append(None)
            continue
        for name, text in texts.items():
            view = found.views[name]
            seconds, rows = peer.answer(text)
            answers[name].append(rows)
            if turn > len(few):
                view.seconds.setdefault(DUCKDB, []).append(seconds)
            elif 0 < turn < len(few):
                view.few.setdefault(DUCKDB, []).append(seconds)
        if copies is not None and last <= extent.spark_runs:
            copies.taken()
            for name, text in texts.items():
                seconds, rows = copies.answer(text)
                check_equal(f"{name} after change {turn}", [(DUCKDB, answers[name][-1]), (SPARK, rows)])
                if last < extent.spark_runs:
                    found.views[name].seconds.setdefault(SPARK, []).append(seconds)
        say(f"maintain: SF {found.scale:g}: change {turn + 1} of {len(few) + len(many)}: peers have answered")
    return answers


def _views(
    found: Scale, bases: Bases, spark: SparkSession | None, texts: Mapping[str, str],
    few: Sequence[Change], many: Sequence[Change], answers: Mapping[str, Sequence[pa.Table | None]], say: Note,
) -> None:  # fmt: skip
    with bases.copy(spark) as db, bases.copy() as none:
        for name, text in texts.items():
            view = found.views[name]
            try:
                db.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
                view.incremental = _is_incremental(db, name, text)
            except headrace.HeadraceError as error:
                view.refused = error.condition
                say(f"maintain: {name}: refused: {error.condition}")
        there = [name for name, view in found.views.items() if view.refused is None]
        timed = Timed(db, there)
        for turn, change in enumerate([*few, *many]):
            timed.begin()
            pair = [(none, False), (db, True)]
            took = {kept: _applied(one, change) for one, kept in (pair if turn % 2 else reversed(pair))}
            if turn > len(few):
                found.more.append(took[True] - took[False])
                found.parts.append(timed.rest)
            for name in there:
                view, (read, rows) = found.views[name], _read(db, name)
                if (expected := answers[name][turn]) is not None:
                    check_equal(f"{name} after change {turn}", [(DUCKDB, expected), (HEADRACE, rows)])
                if turn > len(few):
                    view.seconds.setdefault(HEADRACE, []).append(timed.of(name) + read)
                elif 0 < turn < len(few):
                    view.few.setdefault(HEADRACE, []).append(timed.of(name) + read)
            say(f"maintain: SF {found.scale:g}: change {turn + 1}: {1e3 * timed.rest:.0f} ms for {len(there)} views")
        for name in there:
            found.views[name].state_bytes = _state_bytes(db, name)
            view = found.views[name]
            said = "incremental" if view.incremental else "not incremental"
            say(
                f"maintain: SF {found.scale:g}: {name}, {said}: {1e3 * statistics.median(view.few[HEADRACE]):.1f} ms "
                f"after {FEW:,} rows, {1e3 * view.median(HEADRACE):.1f} ms after {found.changed:,} "
                f"(DuckDB {1e3 * view.median(DUCKDB):.1f} ms)"
            )


def _beside(
    result: Maintained, bases: Bases, source: Source, texts: Mapping[str, str], extent: Extent, say: Note
) -> None:
    """What a few views tell of sizes, groups, batches and the writer."""
    for name in ("q1", "q3"):
        _by_size(result, bases, source, name, texts[name], extent)
        by_rows = {rows: f"{1e3 * by[HEADRACE]:.1f} ms" for rows, by in result.by_size[name].items()}
        say(f"maintain: {name} by rows changed: {by_rows}")
    _groups(result, bases, extent)
    _batches(result, bases, source, texts["q3"], extent)
    _writers(result, bases, source, texts, extent)
    _together(result, bases, source, texts, extent)
    said = f"{result.sustained[0] / result.sustained[1]:,.0f} changes/s into {', '.join(TOGETHER)}"
    say(f"maintain: moved {result.moved}, batches {result.batches}, writer {result.writer}; {said}")


def _by_size(result: Maintained, bases: Bases, source: Source, name: str, text: str, extent: Extent) -> None:
    """The same change in more and more rows, beside running the query."""
    found = result.by_size.setdefault(name, {})
    with bases.copy() as db:
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {text}")
        timed = Timed(db, [name])
        _fresh(db, timed, name, [source.updates(10, turn) for turn in range(2)])
        for size in (*extent.sizes, int(extent.share * source.rows["lineitem"])):
            turns = 1 if size > 100_000 else max(extent.runs, 1)
            changes = [source.updates(size, 3 + turn) for turn in range(turns)]
            seconds = statistics.median(_fresh(db, timed, name, changes))
            again = []
            for _ in range(3):
                start = time.perf_counter()
                rows = db.sql(text).arrow()
                again.append(time.perf_counter() - start)
            check_equal(name, [("recomputed", rows), (HEADRACE, db.sql(f"SELECT * FROM {name}").arrow())])
            found[changes[0].count] = {HEADRACE: seconds, "recomputed": statistics.median(again)}


def _groups(result: Maintained, bases: Bases, extent: Extent) -> None:
    """F4.5.6: updates that move rows to other groups."""
    with bases.copy() as db:
        db.sql(
            "CREATE MATERIALIZED VIEW v AS SELECT l_suppkey, count(*) AS n, sum(l_quantity) AS q FROM lineitem "
            "GROUP BY l_suppkey"
        )
        timed = Timed(db, ["v"])
        keys = db.sql("SELECT DISTINCT l_orderkey FROM lineitem ORDER BY l_orderkey LIMIT 100000").arrow().column(0)
        for moved in (0, 10, 50, 100):
            seconds = []
            for turn in range(extent.runs + 1):
                some = ", ".join(map(str, keys.slice(1_000 * turn, FEW // LINES).to_pylist()))
                timed.begin()
                db.sql(
                    f"UPDATE lineitem SET l_quantity = l_quantity + 1, l_suppkey = CASE WHEN l_orderkey % 100 < {moved}"
                    f" THEN l_suppkey % 9999 + 1 ELSE l_suppkey END WHERE l_orderkey IN ({some})"
                )
                seconds.append(timed.of("v") + _read(db, "v")[0])
            result.moved[moved] = statistics.median(seconds[1:])


def _batches(result: Maintained, bases: Bases, source: Source, text: str, extent: Extent) -> None:
    """F4.5.7: how old an answer is, by how many changes come at once."""
    for size in (size for size in extent.sizes if size <= 100_000):
        with bases.copy() as db:
            db.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
            timed = Timed(db, ["v"])
            changes = [source.updates(size, turn) for turn in range(max(extent.runs, 2) + 1)]
            result.batches[size] = statistics.median(_fresh(db, timed, "v", changes)[1:])


def _writers(result: Maintained, bases: Bases, source: Source, texts: Mapping[str, str], extent: Extent) -> None:
    """F4.5.8: what views cost the writer, and views that do not read what is changed."""
    with bases.copy() as db:
        for count in (0, 1, 2, 5, 10):
            for number in range(len(result.writer) and max(result.writer), count):
                db.sql(f"CREATE MATERIALIZED VIEW v{number} AS {texts[TOGETHER[number % len(TOGETHER)]]}")
            changes = [source.updates(FEW, 10 * count + turn) for turn in range(extent.runs + 1)]
            result.writer[count] = statistics.median([_applied(db, change) for change in changes][1:])
            seconds = []
            for turn in range(extent.runs + 1):
                start = time.perf_counter()
                db.sql(f"UPDATE lineitem SET l_comment = 'c{turn}' WHERE l_orderkey < {FEW}")
                seconds.append(time.perf_counter() - start)
            result.unread[count] = statistics.median(seconds[1:])


def _together(result: Maintained, bases: Bases, source: Source, texts: Mapping[str, str], extent: Extent) -> None:
    """Changes of all kinds into some views at once, and their answers read at the end."""
    with bases.copy() as db:
        for name in TOGETHER:
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {texts[name]}")
        orders = 10_000 // (LINES + 1)
        changes = [source.change(turn, orders) for turn in range(1 + max(extent.sustained // 10_000, 1))]
        _applied(db, changes[0])
        start = time.perf_counter()
        for change in changes[1:]:
            _applied(db, change)
        for name in TOGETHER:
            _read(db, name)
        seconds = time.perf_counter() - start
        for name in TOGETHER:
            check_equal(name, [("recomputed", db.sql(texts[name]).arrow()), (HEADRACE, _read(db, name)[1])])
        result.sustained = sum(change.count for change in changes[1:]), seconds
