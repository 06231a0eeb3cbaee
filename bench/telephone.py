"""AIM (000 §4.3.1): calls of telephone customers come in at a fixed rate while six queries are asked.

One thread offers batches on a schedule that does not wait for the system; another asks one query after the
other, each with equal probability, without pause. Everything happens in one process, as Headrace is used. Every
customer has calls already when the clock starts. At the end all answers are compared with DuckDB's over all events.

A system that pushes its answers is not asked; how long they take to show each batch stands for its reads.
A read that finds nothing new since the last read of its view is answered from what is kept; the bars are held
against the others, those *after new input*.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import duckdb
import pyarrow as pa

import headrace
from bench import aim
from bench.measure import AnswersDiffer, Note, Refused, Timing, check_equal
from bench.ours import database
from headrace.settings import cores

WEEK = 27
FROM_SCRATCH: dict[str, str] = dict(
    re.findall(r"^-- (q\d)\n([^;]*);", Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"), re.MULTILINE)
)
TICK = 0.05
"""Seconds between two offered batches."""
PATIENCE = 60.0
"""How long a system may take to catch up once nothing more is offered."""


def batch(customers: int, rows: int, turn: int) -> pa.Table:
    """Batch ``turn`` of the run; the same turn is the same batch."""
    return aim.events(rows, customers, weeks=(WEEK,), seed=turn)


class Telephone(Protocol):
    """A system that takes events and answers the queries."""

    name: str

    def insert(self, rows: pa.Table) -> None:
        """Take a batch; it counts as acknowledged when this returns."""
        ...

    def ask(self, query: str) -> pa.Table:
        """The answer over at least everything acknowledged before."""
        ...

    def behind(self) -> int:
        """Rows acknowledged that no answer shows yet."""
        ...

    def waits(self) -> list[float] | None:
        """None for a system that is asked. One that pushes its answers: for each batch, in order, the seconds from
        its acknowledgement until the answers had seen it."""
        ...


@dataclass(frozen=True, slots=True)
class Aim:
    """What one system did at one rate."""

    name: str
    offered: float
    acknowledged: float
    """Events a second: of the schedule, and taken in (acknowledged, and seen by the answers)."""
    lag: Timing
    """How long after its due time each batch was acknowledged."""
    reads: dict[str, Timing]
    """After new input, by query; those never asked are left out."""
    kept: Timing | None
    """Reads that found nothing new."""
    pushed: Timing | None = None
    """Of a system that pushes its answers: how long after each batch they had it."""

    @property
    def held(self) -> bool:
        """Was nearly everything taken in during the run, and was the end not far behind?"""
        return self.acknowledged >= 0.99 * self.offered and self.lag.runs[-1] < 1.0

    @property
    def all_reads(self) -> Timing:
        return self.pushed or Timing(tuple(s for timing in self.reads.values() for s in timing.runs))


class Ours:
    name = "Headrace"

    def __init__(self, db: headrace.Database, people: pa.Table) -> None:
        self._db = db
        db.sql(f"CREATE STREAM events ({aim.EVENTS})")
        db.sql(f"CREATE TABLE customers ({aim.CUSTOMERS})")
        db.sql(f"CREATE TABLE clock ({aim.CLOCK})")
        db.insert("customers", people)
        db.sql(f"INSERT INTO clock VALUES ({WEEK})")
        for name, sql in aim.QUERIES.items():
            try:
                db.sql(f"CREATE VIEW {name} AS {sql}")
            except headrace.HeadraceError as error:
                raise Refused(f"{name}: {error.condition}") from None

    def insert(self, rows: pa.Table) -> None:
        self._db.insert("events", rows)

    def ask(self, query: str) -> pa.Table:
        return self._db.sql(f"SELECT * FROM {query}").arrow()

    def behind(self) -> int:
        return 0

    def waits(self) -> None:
        return None


class Deferred:
    """Rows appended durably to a DuckDB table; each query is computed from them."""

    name = "Deferred (DuckDB table)"

    def __init__(self, db: Any, people: pa.Table) -> None:
        self._writer = db.cursor()
        self._reader = db.cursor()
        db.execute(f"CREATE TABLE events ({aim.EVENTS})")
        db.register("people", people)
        db.execute("CREATE TABLE customers AS FROM people")

    def insert(self, rows: pa.Table) -> None:
        self._writer.register("arrived", rows)
        self._writer.execute("INSERT INTO events FROM arrived")

    def ask(self, query: str) -> pa.Table:
        return cast(pa.Table, self._reader.sql(FROM_SCRATCH[query]).to_arrow_table())

    def behind(self) -> int:
        return 0

    def waits(self) -> None:
        return None


@contextmanager
def ours(people: pa.Table) -> Iterator[Telephone]:
    with database() as db:
        yield Ours(db, people)


@contextmanager
def deferred(people: pa.Table) -> Iterator[Telephone]:
    directory = tempfile.mkdtemp(prefix="headrace-bench-")
    try:
        with duckdb.connect(f"{directory}/rows.duckdb", config={"threads": str(cores())}) as db:
            yield Deferred(db, people)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Inserter(threading.Thread):
    """Offers ``rows`` every tick until the time is up; late batches are offered at once, none is dropped."""

    def __init__(self, system: Telephone, count: int, rows: int, first: int, ticks: int) -> None:
        super().__init__(daemon=True)
        self._system, self._count, self._rows, self._first, self._ticks = system, count, rows, first, ticks
        self.done = 0
        """Batches acknowledged."""
        self.lags: list[float] = []
        self.seconds = 0.0
        self.behind = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            start = time.perf_counter()
            # A system that cannot keep up is given up on after twice the time.
            while self.done < self._ticks and time.perf_counter() - start < 2 * TICK * self._ticks:
                rows = batch(self._count, self._rows, self._first + self.done)
                due = start + self.done * TICK
                time.sleep(max(due - time.perf_counter(), 0.0))
                self._system.insert(rows)
                self.lags.append(time.perf_counter() - due)
                self.done += 1
            self.seconds = max(time.perf_counter() - start, TICK * self._ticks)
            self.behind = self._system.behind()
        except BaseException as error:
            self.error = error


def _check(system: Telephone, people: pa.Table, batches: list[pa.Table]) -> None:
    """Compare every answer with DuckDB's over all events; a system that pushes answers may need a moment."""
    with duckdb.connect(config={"threads": str(cores())}) as db:
        db.register("events", pa.concat_tables(batches))
        db.register("customers", people)
        expected = {name: db.sql(sql).to_arrow_table() for name, sql in FROM_SCRATCH.items()}
    deadline = time.perf_counter() + (0.0 if system.waits() is None else PATIENCE)
    for name, right in expected.items():
        while True:
            try:
                check_equal(name, [("DuckDB", right), (system.name, system.ask(name))])
                break
            except AnswersDiffer as difference:
                if system.waits() is None:
                    raise
                if time.perf_counter() > deadline:
                    late = f"its answers had not caught up {PATIENCE:.0f} s after the last event"
                    raise Refused(f"{late} ({difference})") from None
                time.sleep(0.5)


def measure(system: Telephone, people: pa.Table, before: int, rate: int, seconds: float, note: Note) -> Aim:
    """Fill in ``before`` events a customer, then offer ``rate`` events a second for ``seconds`` while asking."""
    count, rows = people.num_rows, max(round(rate * TICK), 1)
    chunk = min(count, 500_000)
    fill = [batch(count, chunk, turn) for turn in range(before * count // chunk)]
    for rows_before in fill:
        system.insert(rows_before)
    names = list(FROM_SCRATCH)
    for name in names:
        system.ask(name)
    inserter = _Inserter(system, count, rows, len(fill), round(seconds / TICK))
    reads: dict[str, list[float]] = {name: [] for name in names}
    kept: list[float] = []
    seen = dict.fromkeys(names, -1)
    choice = random.Random(3)
    inserter.start()
    pushes = system.waits() is not None
    while inserter.is_alive() and not pushes:
        name, done = choice.choice(names), inserter.done
        start = time.perf_counter()
        system.ask(name)
        elapsed = time.perf_counter() - start
        (reads[name] if done > seen[name] else kept).append(elapsed)
        # Counted to the end of the read: one that is taken as after new input certainly was.
        seen[name] = inserter.done
    inserter.join()
    if inserter.error:
        raise inserter.error
    taken = [batch(count, rows, len(fill) + turn) for turn in range(inserter.done)]
    _check(system, people, fill + taken)
    waits = system.waits()
    result = Aim(
        system.name,
        rows / TICK,
        (rows * inserter.done - inserter.behind) / inserter.seconds,
        Timing(tuple(inserter.lags)),
        {name: Timing(tuple(times)) for name, times in reads.items() if times},
        Timing(tuple(kept)) if kept else None,
        Timing(tuple(waits[len(fill) :])) if waits else None,
    )
    asked = result.all_reads
    note(
        f"aim: {system.name} at {result.offered:,.0f}/s: {result.acknowledged:,.0f}/s taken,"
        f" reads p50 {1e3 * asked.p50:.1f} ms, p99 {1e3 * asked.p99:.1f} ms"
    )
    return result


Maker = Callable[[pa.Table], Any]


def run(
    makers: dict[str, Maker], count: int, before: int, rates: tuple[int, ...], seconds: float, note: Note
) -> tuple[list[Aim], dict[str, str]]:
    """Every system at every rate, each in a fresh database; and the reasons of those that refused."""
    people = aim.customers(count)
    results: list[Aim] = []
    refusals: dict[str, str] = {}
    for rate in rates:
        for name, make in makers.items():
            if name in refusals:
                continue
            try:
                with make(people) as system:
                    results.append(measure(system, people, before, rate, seconds, note))
            except Refused as refusal:
                refusals[name] = str(refusal)
                note(f"aim: {name}: refused: {refusal}")
    return results, refusals
