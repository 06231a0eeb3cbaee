"""Moving running queries (004 §5, 000 §6.4): what it costs when it is not used, when it is, and against starting again.

TPC-H and TPC-DS from Parquet. A query is suspended in this process when so many of its pipelines are finished, and
resumed in a second Spark process on the same cores. Starting Spark is left out on both sides, and so is a query's first
run, which compiles what later runs find; both are shown apart. Every answer is compared with that of the query left
alone. What was measured is kept if something later fails.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import headrace
from bench.measure import Note, Stopwatch, check_equal
from bench.move_queries import SUITES, Query, start_spark
from bench.move_target import Target, target
from bench.peers.spark import java_version
from headrace.errors import HeadraceError
from headrace.move import states
from headrace.move.plan import in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.move import RunningQuery, Ticket

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured."""

    chosen: Mapping[str, Mapping[str, float]]
    """The queries that are moved, by suite, with the scale of each."""
    pairs: int = 2
    points: int = 3
    """Moves of a query, spread over its pipelines."""
    parallel: tuple[int, ...] = (1, 2, 4)
    states_scale: float = 1.0
    states_of: Mapping[str, tuple[str, ...]] | None = None
    """The queries whose states are measured; all of them if None."""

    def queries(self) -> list[Query]:
        return [
            SUITES[suite].query(name, scale) for suite, chosen in self.chosen.items() for name, scale in chosen.items()
        ]

    def measured(self) -> list[Query]:
        """The queries whose states are measured."""
        if self.states_of is None:
            return [query for suite in SUITES.values() for query in suite.queries(self.states_scale).values()]
        return [
            SUITES[suite].query(name, self.states_scale) for suite, names in self.states_of.items() for name in names
        ]


WHOLE = Extent({"TPC-H": {"q9": 10.0}, "TPC-DS": {"q4": 5.0, "q9": 45.0, "q28": 30.0, "q88": 30.0}})
"""Queries of many stages, each at least 20 s on two cores. Of all queries' states at SF 1 nine in ten are under 100 MB:
here Q9, Q28 and Q88 of TPC-DS never have more, Q4 for a while, and Q9 of TPC-H nearly always."""
QUICK = Extent(
    {"TPC-H": {"q18": 0.1}, "TPC-DS": {"q65": 0.1}},
    pairs=2,
    points=2,
    parallel=(1, 2),
    states_scale=0.1,
    states_of={"TPC-H": ("q5", "q18"), "TPC-DS": ("q65", "q67")},
)


@dataclass(frozen=True, slots=True)
class Move:
    """One query moved once: seconds of each part, and what moved."""

    query: str
    finished: int
    """Pipelines, of ``total``."""
    total: int
    needed_bytes: int
    """What unfinished pipelines still read, as Spark holds it (Definition 2)."""
    state_bytes: int
    """What of it was written; the rest is cheaper to compute again."""
    local: float
    """The query left alone, right before."""
    there: float
    """The query left alone where it is resumed, when both processes were warm."""
    until: float
    suspend: float
    resume: float

    @property
    def progress(self) -> float:
        return self.finished / self.total

    @property
    def overhead(self) -> float:
        """Of moving, relative to the query left alone."""
        return (self.until + self.suspend + self.resume) / self.local - 1

    @property
    def beats_restart(self) -> float:
        """How many times as fast as starting again elsewhere at the same moment."""
        return (self.until + self.there) / (self.until + self.suspend + self.resume)


@dataclass(frozen=True, slots=True)
class EveryStage:
    """A query that leaves a ticket whenever a pipeline is finished, and goes on."""

    overhead: float
    """Relative to the query left alone."""
    tickets: int
    state_bytes: int
    """Of all tickets together."""


@dataclass(frozen=True, slots=True)
class Vacated:
    """Queries that ran side by side and were suspended together."""

    seconds: float
    suspended: int
    needed_bytes: int
    """What unfinished pipelines still read, as Spark holds it."""
    state_bytes: int
    """What of it was written."""


@dataclass(frozen=True, slots=True)
class State:
    """What a query would take with it at some point: how many stages, and their bytes."""

    suite: str
    query: str
    progress: float
    stages: int
    bytes: int


@dataclass(slots=True)
class Moves:
    """Everything measured so far."""

    extent: Extent
    startup: dict[str, float] = field(default_factory=dict)
    """Seconds to start Spark, by side, and of a query's first run in the second process, by query."""
    java: str | None = None
    plain: dict[str, Stopwatch] = field(default_factory=dict)
    ours: dict[str, Stopwatch] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    """Points at which a query was to be moved, and had its answer before it could be."""
    every_stage: dict[str, EveryStage] = field(default_factory=dict)
    vacated: dict[int, Vacated] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What could not be measured, and why."""

    def local(self, query: str) -> float:
        """Seconds of the query left alone."""
        return self.plain[query].timing.median

    def pairs(self) -> list[float]:
        """Of each pair of runs with nothing suspended: headrace.run's time relative to plain Spark's."""
        return [
            mine / theirs
            for name in self.plain
            for theirs, mine in zip(self.plain[name].seconds, self.ours[name].seconds, strict=True)
        ]


@dataclass(slots=True)
class _Bench:
    """The first process, with a session for each suite."""

    spark: SparkSession
    extent: Extent
    result: Moves
    say: Note
    answers: dict[str, pa.Table] = field(default_factory=dict)
    stages: dict[str, int] = field(default_factory=dict)
    """How many pipelines are finished before the answer; adaptive execution does without some."""
    there: dict[str, float] = field(default_factory=dict)
    """Seconds of a query's last run in the second process."""
    _sessions: dict[tuple[str, float], SparkSession] = field(default_factory=dict)

    def session(self, query: Query) -> SparkSession:
        key = query.suite, query.scale
        if key not in self._sessions:
            self._sessions[key] = SUITES[query.suite].session(self.spark, key[1])
        return self._sessions[key]

    @contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """Whatever fails here leaves the rest standing."""
        try:
            yield
        except Exception as error:
            self.result.failures.append(f"{what}: {type(error).__name__}: {error}")
            self.say(f"move: FAILED: {self.result.failures[-1]}")

    def settled(self) -> list[Query]:
        """The chosen queries whose time and answer are known."""
        return [query for query in self.extent.queries() if query.label in self.answers]


def run(extent: Extent, say: Note) -> Moves:
    """Measure everything. An answer that differs is a failure, and has no figure."""
    result = Moves(extent)
    for query in extent.queries():
        say(f"move: {query.label} at SF {query.scale:g}")
        SUITES[query.suite].make_tables(query)
    for query in extent.measured():
        SUITES[query.suite].make_tables(query)
    began = time.perf_counter()
    spark = start_spark()
    result.startup["Spark, where a query is suspended"] = time.perf_counter() - began
    bench = _Bench(spark, extent, result, say)
    try:
        result.java = java_version(spark)
        _idle(bench)
        if bench.settled():
            with bench.kept("moves"), target() as other:
                result.startup["Spark, where it is resumed"] = other.startup
                _moves(bench, other)
            _every_stage(bench)
            for n in extent.parallel:
                with bench.kept(f"vacating {n}"):
                    result.vacated[n] = _vacate(bench, n)
        _states(bench)
    except KeyboardInterrupt:
        result.failures.append("the rest: interrupted")
    finally:
        with suppress(Exception):  # if it has died, that was said where it was needed
            spark.stop()
    return result


def _idle(bench: _Bench) -> None:
    """Plain Spark and headrace.run in turn, nothing suspended; each goes first in every other pair."""
    pair = 0
    for query in bench.extent.queries():
        label, plain, ours = query.label, Stopwatch(), Stopwatch()
        with bench.kept(label):
            session = bench.session(query)
            running = headrace.run(session, query.text)  # warm
            answer = running.result().arrow()
            bench.stages[label] = sum(stage.finished for stage in running._planned.stages())
            for _ in range(bench.extent.pairs):
                for mine in (pair % 2 == 0, pair % 2 == 1):
                    with (ours if mine else plain).timed():
                        table = (
                            headrace.run(session, query.text).result().arrow()
                            if mine
                            else session.sql(query.text).toArrow()
                        )
                    check_equal(label, [("first run", answer), ("headrace.run" if mine else "Spark", table)])
                pair += 1
                bench.say(f"move: {label}: plain {plain.seconds[-1]:.2f} s, headrace.run {ours.seconds[-1]:.2f} s")
            bench.result.plain[label], bench.result.ours[label] = plain, ours
            bench.answers[label] = answer


def _moves(bench: _Bench, other: Target) -> None:
    for query in bench.settled():
        with bench.kept(f"{query.label}, first run elsewhere"):
            seconds = [other.warm(query.suite, query.scale, query.text) for _ in range(1 + bench.extent.pairs)]
            bench.result.startup[f"{query.label}, its first run there"] = seconds[0]
            bench.there[query.label] = seconds[-1]
    with bench.kept("a first move"):
        first = bench.settled()[0]
        move = _move(bench, other, first, points(bench.stages[first.label], bench.extent.points)[0])
        if move is not None:
            bench.result.startup["writing and reading state in a first move"] = move.suspend + move.resume
    for query in bench.settled():
        reached = 0
        for wanted in points(bench.stages[query.label], bench.extent.points):
            if wanted <= reached:
                continue  # several pipelines end at once
            with bench.kept(f"{query.label}, moved after {wanted}"):
                if (move := _move(bench, other, query, wanted)) is None:
                    bench.result.passed.append(f"{query.label} after {wanted} of {bench.stages[query.label]} stages")
                    break
                bench.result.moves.append(move)
                reached = move.finished


def points(stages: int, count: int) -> list[int]:
    """After how many stages to move: after each, or ``count`` times, spread evenly, the last time after all of them.

    >>> points(3, 4), points(20, 4)
    ([1, 2, 3], [5, 10, 15, 20])
    """
    if stages <= count:
        return list(range(1, stages + 1))
    return [round(stages * (i + 1) / count) for i in range(count)]


def _move(bench: _Bench, other: Target, query: Query, wanted: int) -> Move | None:
    """The query moved once, from its beginning, when so many pipelines are finished; None if it is faster."""
    local = _timed(lambda: bench.session(query).sql(query.text).toArrow())  # the machine's speed drifts
    with _folder() as to:
        began = time.perf_counter()
        running = headrace.run(bench.session(query), query.text)
        if not _until(running, wanted):
            return None
        until = time.perf_counter() - began
        ticket = _unless_finished(partial(running.suspend, str(to / "ticket")))
        if ticket is None:
            return None
        suspend = time.perf_counter() - began - until
        seconds, answer = other.resume(query.suite, query.scale, ticket.address, to / "answer")
    needed = _needed_bytes(running)
    finished, total = ticket.progress
    check_equal(query.label, [("not moved", bench.answers[query.label]), (f"moved after {finished}", answer)])
    move = Move(
        query.label, finished, total, needed, ticket.bytes, local, bench.there[query.label], until, suspend, seconds
    )
    bench.say(
        f"move: {query.label} at {finished} of {total}: {move.needed_bytes:,} bytes held, {move.state_bytes:,} "
        f"written, {until:.1f} + {suspend:.1f} + {seconds:.1f} s, alone {local:.1f} s, overhead {move.overhead:+.0%}"
    )
    return move


def _needed_bytes(running: RunningQuery) -> int:
    held = {stage.pipeline: stage for stage in running._planned.stages() if stage.finished}
    return sum(states.size_of(held[pipeline])[0] for pipeline in running._needed(held))


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _until(running: RunningQuery, wanted: int) -> bool:
    """Wait until so many pipelines are finished; False if the query is done first."""
    while running.status == "running":
        if running.progress().finished >= wanted:
            return running.status == "running"
        time.sleep(_POLL_SECONDS)
    running.result()  # if it has failed, so has this
    return False


def _unless_finished(leave: Callable[[], Ticket]) -> Ticket | None:
    """The ticket, or None if the query was faster."""
    try:
        return leave()
    except HeadraceError as error:
        if error.condition != "QUERY_FINISHED":
            raise
        return None


def _every_stage(bench: _Bench) -> None:
    """A snapshot after each pipeline: what separating state always costs (000 Figures 6.13 and 6.14)."""
    for query in bench.settled():
        with bench.kept(f"{query.label}, extracted at every stage"), _folder() as to:
            tickets: list[Ticket] = []
            began = time.perf_counter()
            running = headrace.run(bench.session(query), query.text)
            wanted = 1
            while _until(running, wanted):
                ticket = _unless_finished(partial(running.snapshot, str(to / str(wanted))))
                if ticket is None:
                    break
                tickets.append(ticket)
                wanted = ticket.progress[0] + 1
            running.result()
            overhead = (time.perf_counter() - began) / bench.result.local(query.label) - 1
            found = EveryStage(overhead, len(tickets), sum(ticket.bytes for ticket in tickets))
            bench.result.every_stage[query.label] = found
            bench.say(f"move: {query.label}, {found.tickets} tickets: {found.state_bytes:,} bytes, {overhead:+.0%}")


def _vacate(bench: _Bench, n: int) -> Vacated:
    """Suspend ``n`` queries that run side by side, once each has a third of its pipelines behind it."""
    queries = bench.settled()
    with _folder() as to, ThreadPoolExecutor(n) as pool:
        chosen = [queries[i % len(queries)] for i in range(n)]
        running = [headrace.run(bench.session(query), query.text) for query in chosen]
        for query, each in zip(chosen, running, strict=True):
            _until(each, max(1, bench.stages[query.label] // 3))

        def leave(numbered: tuple[int, RunningQuery]) -> Ticket | None:
            number, each = numbered
            return _unless_finished(partial(each.suspend, str(to / str(number)), finish=False))

        began = time.perf_counter()
        tickets = [ticket for ticket in pool.map(leave, enumerate(running)) if ticket is not None]
        seconds = time.perf_counter() - began
        needed = sum(map(_needed_bytes, running))
        found = Vacated(seconds, len(tickets), needed, sum(ticket.bytes for ticket in tickets))
    bench.say(f"move: vacated {found.suspended} of {n} in {found.seconds:.2f} s, {found.state_bytes:,} bytes")
    return found


def _states(bench: _Bench) -> None:
    """The size of the state after each stage, as Spark measured the stages; nothing is written."""
    for query in bench.extent.measured():
        with bench.kept(f"{query.label}, states"):
            began = time.perf_counter()
            running = headrace.run(bench.session(query), query.text)
            running.result()
            seconds = time.perf_counter() - began
            found = _states_of(query, running)
            bench.result.states += found
            largest = max((state.bytes for state in found), default=0)
            bench.say(f"move: {query.label}: {len(found)} states up to {largest:,} bytes, {seconds:.1f} s")


def _states_of(query: Query, running: RunningQuery) -> list[State]:
    """After each of its pipelines, in the order in which what they read is finished."""
    planned = running._planned
    sizes = {stage.pipeline: states.size_of(stage)[0] for stage in planned.stages() if stage.finished}
    order = [pipeline for pipeline in in_order(planned.depends) if pipeline in sizes]
    found = []
    for n in range(1, len(order) + 1):
        needed = running._needed(order[:n])
        size = sum(sizes[pipeline] for pipeline in needed)
        found.append(State(query.suite, query.label, n / len(planned.depends), len(needed), size))
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
