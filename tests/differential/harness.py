"""The differential harness: Headrace against Spark as a batch, over the same rows.

A case is data: definitions, the rows of each stream, a view, a query. ``check``
feeds the rows in chunks, by an engine, with the view made at some point on the
way, as often as it is told to, and compares

* the answer with Spark's, run as a batch over all rows that came after the view
  was made, as multisets (doubles to a tolerance);
* the *merged state rows* with those of every other engine and chunking.

Tables may change between chunks. Rows then see them as they were when they came: Spark runs what lies below the
grouping chunk by chunk, over the tables of that time (DuckDB makes the same changes), and the rest over all of that.

If Spark fails, Headrace must fail too, in the insert or in the read.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

import headrace
from headrace.database import Database
from headrace.engine.failures import from_spark
from headrace.errors import HeadraceError
from headrace.settings import PINNED_SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One thing to check. ``tables`` are created and filled before the view is made."""

    view: str
    streams: Mapping[str, tuple[str, Sequence[tuple[Any, ...]]]]
    """For each stream, its column list as DDL and its rows in order of arrival."""
    tables: Mapping[str, tuple[str, Sequence[tuple[Any, ...]]]] = field(default_factory=dict)
    query: str = "SELECT * FROM v"
    ordered: bool = False
    below: str = ""
    """What lies below the view's grouping, which reads it as ``{below}``; for tables that change."""
    changes: Mapping[int, str] = field(default_factory=dict)
    """Statements that change tables, each before the chunk of that number."""


@dataclass(frozen=True)
class Schedule:
    """How the rows arrive: where each stream is cut, and after how many chunks the view is made."""

    cuts: Sequence[int] = ()
    """Positions, counted over all streams' rows laid end to end, modulo their number."""
    created_after: int = 0
    reopen_after: int | None = None


@dataclass(frozen=True)
class Outcome:
    """An answer, or the condition it failed with; and the merged states."""

    answer: Rows | None
    failed: str | None
    states: tuple[Rows, ...] = ()


def run(case: Case, spark: SparkSession, engine: str, schedule: Schedule, path: Any = None, **settings: Any) -> Outcome:
    """The case by Headrace, under one engine and schedule."""
    db = headrace.connect(path, spark=spark, engine=engine, **settings)
    try:
        for name, (columns, rows) in case.tables.items():
            db.sql(f"CREATE TABLE {name} ({columns})")
            if rows:
                db.insert(name, list(rows))
        for name, (columns, _) in case.streams.items():
            db.sql(f"CREATE STREAM {name} ({columns})")
        try:
            for number, (stream, rows) in enumerate(chunks(case, schedule)):
                if number == schedule.created_after:
                    db.sql(f"CREATE VIEW v AS {viewed(case)}")
                if number in case.changes:
                    db.sql(case.changes[number])
                if number == schedule.reopen_after and path is not None:
                    db.close()
                    db = headrace.connect(path, spark=spark, engine=engine, **settings)
                db.insert(stream, list(rows))
            if db.catalog.find("v") is None:
                db.sql(f"CREATE VIEW v AS {viewed(case)}")
            result = db.sql(case.query)
            return Outcome(result.rows(), None, merged_states(db, "v"))
        except HeadraceError as error:
            if error.condition in ("ENGINE_CANNOT", "NATIVE_ENGINE_FAILED", "NOT_YET_SUPPORTED"):
                raise
            return Outcome(None, error.condition)
    finally:
        db.close()


def merged_states(db: Database, view: str) -> tuple[Rows, ...]:
    """The view's state relations, each merged to one row a key."""
    compiled = db.keeper.get(view)
    with db.runtime.store.read() as snapshot:
        return tuple(
            table_rows(
                snapshot.query(
                    compiled.by_name[s.name].merge("stored"), stored=snapshot.scan(compiled.by_name[s.name].ref)
                )
            )
            for s in compiled.plan.states
        )


def viewed(case: Case, below: str | None = None) -> str:
    """The view's text, over what lies below its grouping or over these rows of it."""
    return case.view.replace("{below}", below or f"({case.below})")


def chunks(case: Case, schedule: Schedule) -> list[tuple[str, Sequence[tuple[Any, ...]]]]:
    """The streams' rows cut into inserts, interleaved chunk by chunk."""
    found: list[list[tuple[str, Sequence[tuple[Any, ...]]]]] = []
    for name, (_, rows) in case.streams.items():
        marks = sorted({c % (len(rows) + 1) for c in schedule.cuts} | {0, len(rows)})
        found.append([(name, rows[a:b]) for a, b in itertools.pairwise(marks)] or [(name, rows)])
    rounds = max(len(f) for f in found)
    return [f[i] for i in range(rounds) for f in found if i < len(f)]


def seen(case: Case, schedule: Schedule) -> dict[str, Rows]:
    """The rows of each stream that came once the view was there."""
    found: dict[str, Rows] = {name: [] for name in case.streams}
    for number, (stream, rows) in enumerate(chunks(case, schedule)):
        if number >= schedule.created_after:
            found[stream] += rows
    return found


def oracle(case: Case, spark: SparkSession, schedule: Schedule) -> Outcome:
    """The same query by Spark as a batch over all rows that came once the view was there."""
    session = oracle_session(spark)
    for name, (columns, rows) in case.tables.items():
        frame(session, columns, rows).createOrReplaceTempView(name)
    for name, rows in seen(case, schedule).items():
        frame(session, case.streams[name][0], rows).createOrReplaceTempView(name)
    try:
        if case.changes:
            _below_at_each_time(case, session, schedule).createOrReplaceTempView("below_")
        session.sql(viewed(case, "below_" if case.changes else None)).createOrReplaceTempView("v")
        return Outcome(table_rows(session.sql(case.query).toArrow()), None)
    except Exception as error:
        return Outcome(None, from_spark(error).condition)


def _below_at_each_time(case: Case, session: SparkSession, schedule: Schedule) -> Any:
    """What the chunks leave below the grouping, each over the tables as they were when it came."""
    found = None
    with duckdb.connect() as tables:
        for name, (columns, rows) in case.tables.items():
            tables.execute(f"CREATE TABLE {name} ({columns})")
            tables.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", list(rows))
        for number, (stream, rows) in enumerate(chunks(case, schedule)):
            tables.execute(case.changes.get(number, "SELECT 1"))
            if number < schedule.created_after:
                continue
            for name, (columns, _) in case.tables.items():
                frame(session, columns, tables.table(name).fetchall()).createOrReplaceTempView(name)
            for name, (columns, _) in case.streams.items():
                frame(session, columns, rows if name == stream else []).createOrReplaceTempView(name)
            left = session.sql(case.below)
            found = left if found is None else found.unionAll(left)
    assert found is not None
    return found


@lru_cache(maxsize=1)
def oracle_session(spark: SparkSession) -> SparkSession:
    """A session with the pinned settings, tuned for many tiny queries."""
    session = spark.newSession()
    for key, value in PINNED_SPARK.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    return session


def frame(session: SparkSession, columns: str, rows: Iterable[tuple[Any, ...]]) -> Any:
    return _frame(session, columns, pickle.dumps(list(rows)))


@lru_cache(maxsize=32)
def _frame(session: SparkSession, columns: str, rows: bytes) -> Any:
    """Cases share their rows: a frame is made once."""
    return session.createDataFrame(pickle.loads(rows), columns)


def check(case: Case, spark: SparkSession, runs: Sequence[tuple[str, Schedule]], **more: Any) -> None:
    """Every engine under its schedule agrees with Spark, and their states with each other.

    The view sees the same rows under all of these schedules, so Spark is asked once.
    """
    _, asked = runs[0]
    expected = oracle(case, spark, asked)
    first: Outcome | None = None
    for engine, schedule in runs:
        assert seen(case, schedule) == seen(case, asked)
        assert not case.changes or chunks(case, schedule) == chunks(case, asked)
        found = run(case, spark, engine, schedule, **more)
        where = f"engine {engine}, {schedule}"
        if expected.failed is not None:
            assert found.failed is not None, f"Spark fails with {expected.failed}, Headrace answers ({where})"
            continue
        assert found.failed is None, f"Headrace fails with {found.failed}, Spark answers ({where})"
        assert found.answer is not None and expected.answer is not None
        assert_same(found.answer, expected.answer, ordered=case.ordered, where=where)
        if first is not None:
            for mine, theirs in zip(found.states, first.states, strict=True):
                assert_same(mine, theirs, where=f"state rows, {where}")
        first = first or found


def table_rows(table: pa.Table) -> Rows:
    columns = [c.to_pylist() for c in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def assert_same(found: Rows, expected: Rows, *, ordered: bool = False, where: str = "") -> None:
    """Equal as multisets (or as lists); floats equal to a tolerance, NaN to NaN."""
    mine, theirs = (list(map(_exact, rows)) for rows in (found, expected))
    if not ordered and Counter(mine) == Counter(theirs):
        return
    if not ordered:
        mine, theirs = sorted(mine, key=_order), sorted(theirs, key=_order)
    assert len(mine) == len(theirs), f"{len(mine)} rows, expected {len(theirs)} ({where})\n{mine}\n{theirs}"
    for a, b in zip(mine, theirs, strict=True):
        assert len(a) == len(b) and all(map(_close, a, b)), f"{a} is not {b} ({where})"


def _exact(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_hashable, row))


def _hashable(value: Any) -> Any:
    """A value that equals another where the two are the same: NaN is itself, zero has no sign, lists are tuples."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return ("[]", *map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(v)) for name, v in value.items())
    return value


def _order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((v is not None, type(v).__name__, f"{v:.6e}" if isinstance(v, float) else repr(v)) for v in row)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return a == b and a.as_tuple().exponent == b.as_tuple().exponent
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    return type(a) is type(b) and bool(a == b)
