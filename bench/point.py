"""Point reads of a materialized view while its table changes.

A view of a million groups is read by key, one row at a time, while another thread changes its table ten thousand rows a
second: inserts, updates and deletes in turn, each statement of a thousand rows. A read sees all that was acknowledged
before it began. The same reads are made first while nothing changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bench.bars import Bar, at_least, at_most
from bench.ours import database
from bench.report import prose, table
from headrace import Database

PER_SECOND, AT_ONCE, MANY = 10_000, 1_000, 100
P50_MS, P99_MS, HELD = 1.0, 5.0, 0.95


@dataclass
class Points:
    """What was measured; times in seconds."""

    groups: int
    seconds: float = 0.0
    changed: int = 0
    """Rows that were changed while reads were timed."""
    alone: list[float] = field(default_factory=list)
    """Of reads while nothing changes."""
    reads: list[float] = field(default_factory=list)
    many: list[float] = field(default_factory=list)
    """Of reads of :data:`MANY` keys at once."""
    statements: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.changed / self.seconds


def _rows(start: int, groups: int, rng: np.random.Generator) -> pa.Table:
    keys = rng.integers(0, groups, AT_ONCE)
    return _table(np.arange(start, start + AT_ONCE), keys, rng.integers(0, 100, AT_ONCE))


def _table(ids: np.ndarray, keys: np.ndarray, values: np.ndarray) -> pa.Table:
    columns = {"id": pa.array(ids, pa.int64()), "a": pa.array(keys // 1_000, pa.int32())}
    return pa.table({**columns, "b": pa.array(keys % 1_000, pa.int32()), "v": pa.array(values, pa.int64())})


def run(groups: int, seconds: float, say: Callable[[str], None]) -> Points:
    """Measure."""
    found = Points(groups)
    rng = np.random.default_rng(19)
    with database() as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b INT, v BIGINT)")
        db.insert("t", _table(np.arange(groups), np.arange(groups), rng.integers(0, 100, groups)))
        db.sql("CREATE MATERIALIZED VIEW v AS SELECT a, b, count(*) AS n, sum(v) AS s FROM t GROUP BY a, b")
        _read(db, found.alone, [], groups, seconds / 3, rng, threading.Event())
        done = threading.Event()
        writer = threading.Thread(target=_change, args=(db, found, groups, done))
        writer.start()
        try:
            started = time.perf_counter()
            _read(db, found.reads, found.many, groups, seconds, rng, done)
            found.seconds = time.perf_counter() - started
        finally:
            done.set()
            writer.join()
        _check(db)
    for name, times in (("alone", found.alone), ("while rows change", found.reads)):
        p50, p99 = (_ms(times, q) for q in (50, 99))
        say(f"point: {name}: {len(times):,} reads, p50 {p50:.3f} ms, p99 {p99:.3f} ms, p99.9 {_ms(times, 99.9):.3f} ms")
    say(f"point: {found.rate:,.0f} changes/s, a statement p50 {_ms(found.statements, 50):.1f} ms")
    return found


def _read(
    db: Database,
    one: list[float],
    many: list[float],
    groups: int,
    seconds: float,
    rng: np.random.Generator,
    done: threading.Event,
) -> None:
    """Read random keys for some time: a thousand a second, so that there is room for whoever changes rows."""
    keys = [(int(k) // 1_000, int(k) % 1_000) for k in rng.integers(0, groups, 100_000)]
    for key in keys[:100]:
        db.get("v", key)
    ends = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < ends and not done.is_set():
        turn += 1
        started = time.perf_counter()
        db.get("v", keys[turn % len(keys)])
        one.append(time.perf_counter() - started)
        if many is not one and turn % 500 == 0:
            started = time.perf_counter()
            db.get_many("v", keys[turn % 50_000 :][:MANY])
            many.append(time.perf_counter() - started)
        time.sleep(0.001)


def _change(db: Database, found: Points, groups: int, done: threading.Event) -> None:
    """Change ten thousand rows a second, until told to stop."""
    rng = np.random.default_rng(20)
    start, turn, begun = groups, 0, time.perf_counter()
    try:
        while not done.is_set():
            started = time.perf_counter()
            match turn % 3:
                case 0:
                    db.insert("t", _rows(start, groups, rng))
                    start += AT_ONCE
                case 1:
                    db.sql(f"UPDATE t SET v = v + 1 WHERE id >= {start - AT_ONCE}")
                case _:
                    db.sql(f"DELETE FROM t WHERE id >= {start - AT_ONCE}")
            found.statements.append(time.perf_counter() - started)
            found.changed += AT_ONCE
            turn += 1
            done.wait(max(0.0, begun + turn * AT_ONCE / PER_SECOND - time.perf_counter()))
    finally:
        done.set()


def _check(db: Database) -> None:
    """The view is its query."""
    whole = "SELECT a, b, count(*) AS n, sum(v) AS s FROM t GROUP BY a, b"
    differs = db.sql(f"SELECT count(*) FROM (SELECT * FROM v EXCEPT ALL {whole})").rows()
    if differs != [(0,)]:
        raise AssertionError(f"{differs[0][0]} rows of the view are not those of its query")


def _ms(times: list[float], q: float) -> float:
    return 1e3 * float(np.percentile(times, q)) if times else float("nan")


def bars(found: Points) -> list[Bar]:
    """Whether a read is as fast as it is to be, while as much changes as it is to."""
    return [
        at_most(f"point: row of a view of {found.groups:,}, p50", _ms(found.reads, 50), P50_MS, " ms"),
        at_most(f"point: row of a view of {found.groups:,}, p99", _ms(found.reads, 99), P99_MS, " ms"),
        at_least(f"point: of {PER_SECOND:,} changes/s, held", found.rate / PER_SECOND, HELD, ""),
    ]


def page(found: Points) -> list[str]:
    """The figures as a page."""
    rows = [
        [what, f"{len(times):,}", *(f"{_ms(times, q):.3f}" for q in (50, 99, 99.9))]
        for what, times in (
            ("db.get, nothing changes", found.alone),
            (f"db.get, {found.rate:,.0f} changes/s", found.reads),
            (f"db.get_many of {MANY}, the same", found.many),
            (f"the statements that change {AT_ONCE:,} rows", found.statements),
        )
    ]
    return [
        f"## A view of {found.groups:,} groups, read by key while its table changes",
        "",
        prose((__doc__ or "").partition("\n\n")[2]),
        "",
        *table(["", "times", "p50, ms", "p99, ms", "p99.9, ms"], rows),
        "",
    ]
