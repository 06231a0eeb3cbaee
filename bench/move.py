"""Moving running queries (004 §6): what it costs when it is not used, when it is, and against starting again.

TPC-H from Parquet. A query is suspended in this process each time one more of its pipelines is finished, and resumed in
a second Spark process on the same cores; Spark's start-up is left out on both sides. Every answer is compared with the
one of the query that was not moved.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import headrace
from bench.measure import Note, Stopwatch
from headrace.errors import HeadraceError
from headrace.move import states
from headrace.settings import cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.move import RunningQuery

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("lineitem", "orders", "customer", "supplier", "part", "partsupp", "nation", "region")
CHOSEN = ("q5", "q9", "q13", "q16", "q18", "q21")
"""Long queries of many stages."""
_QUERIES = (ROOT / "tests" / "tpch.sql", ROOT / "tests" / "move" / "moved.sql")


@dataclass(frozen=True, slots=True)
class Move:
    """One query moved once: seconds of each part, and what moved."""

    query: str
    progress: float
    state_bytes: int
    local: float
    until: float
    suspend: float
    resume: float

    @property
    def overhead(self) -> float:
        """Of moving, relative to the query left alone."""
        return (self.until + self.suspend + self.resume) / self.local - 1

    @property
    def beats_restart(self) -> float:
        """How many times as fast as starting again elsewhere at the same moment."""
        return (self.until + self.local) / (self.until + self.suspend + self.resume)


@dataclass(frozen=True, slots=True)
class State:
    """What a query would take with it at some point: the needed stages, and all finished ones."""

    query: str
    progress: float
    needed: int
    all_finished: int


@dataclass(frozen=True, slots=True)
class Moves:
    """Everything measured."""

    scale: float
    plain: dict[str, Stopwatch]
    ours: dict[str, Stopwatch]
    moves: list[Move]
    every_stage: dict[str, float]
    """Overhead of extracting at every stage."""
    vacated: dict[int, float]
    states: list[State]
    states_scale: float


def queries() -> dict[str, str]:
    """TPC-H's queries, by name."""
    case = re.compile(r"^-- (q\d+)\n([^;]*);", re.MULTILINE)
    return {name: text for file in _QUERIES for name, text in case.findall(file.read_text(encoding="utf-8"))}


def start_spark() -> SparkSession:
    from headrace.engine.session import start_spark

    return start_spark({"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": str(4 * cores())})


def data(scale: float) -> Path:
    """The tables under ``data/``, made when first asked for."""
    folder = ROOT / "data" / f"tpch-sf{scale:g}" / "whole"
    if not folder.exists():
        part = folder.with_name("whole.unfinished")
        tool = Path(sys.executable).with_name("tpchgen-cli")
        subprocess.run(
            [str(tool), "parquet", "-s", f"{scale:g}", f"--output-dir={part}"], check=True, capture_output=True
        )
        part.rename(folder)
    return folder


def script(name: str, folder: Path) -> str:
    views = "".join(
        f"CREATE OR REPLACE TEMPORARY VIEW {t} USING parquet OPTIONS (path '{folder}/{t}.parquet'); " for t in TABLES
    )
    return views + queries()[name]


def answer_check(table: pa.Table) -> str:
    return hashlib.sha256("\n".join(sorted(map(repr, table.to_pylist()))).encode()).hexdigest()


class Target:
    """The second process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.move_target"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._read()

    def resume(self, ticket: str) -> tuple[float, str]:
        assert self._process.stdin is not None
        print(json.dumps({"ticket": ticket}), file=self._process.stdin, flush=True)
        found = self._read()
        return float(found["seconds"]), str(found["check"])

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that resumes has died")
        found: dict[str, Any] = json.loads(line)
        return found


def run(
    chosen: Sequence[str], scale: float, states_of: Sequence[str], states_scale: float, runs: int, say: Note
) -> Moves:
    """Measure everything; an answer that differs is an error."""
    folder = data(scale)
    spark = start_spark()
    try:
        plain, ours, checks = _idle(spark, chosen, folder, runs, say)
        local = {name: ours[name].timing.median for name in chosen}
        with _tickets() as to, _target() as target:
            moves = [
                move
                for name in chosen
                for move in _moved(spark, target, name, folder, to, local[name], checks[name], say)
            ]
        every = {name: _every_stage(spark, name, folder, local[name]) for name in chosen}
        vacated = {n: _vacate(spark, chosen, folder, n) for n in (1, 2, 4)}
        sizes = [state for name in states_of or queries() for state in _states(spark, name, data(states_scale))]
    finally:
        spark.stop()
    return Moves(scale, plain, ours, moves, every, vacated, sizes, states_scale)


def _idle(
    spark: SparkSession, chosen: Sequence[str], folder: Path, runs: int, say: Note
) -> tuple[dict[str, Stopwatch], dict[str, Stopwatch], dict[str, str]]:
    """Plain Spark and headrace.run in turn, nothing suspended."""
    plain = {name: Stopwatch() for name in chosen}
    ours = {name: Stopwatch() for name in chosen}
    checks: dict[str, str] = {}
    for name in chosen:
        text = script(name, folder)
        *views, query = text.split("; ")
        for view in views:
            spark.sql(view)
        checks[name] = answer_check(spark.sql(query).toArrow())  # warm
        for i in range(runs):
            for mine in (i % 2 == 0, i % 2 == 1):
                with (ours if mine else plain)[name].timed():
                    table = headrace.run(spark, query).result().arrow() if mine else spark.sql(query).toArrow()
                assert answer_check(table) == checks[name], name
        say(f"move: {name}: plain {plain[name].timing.median:.2f} s, headrace.run {ours[name].timing.median:.2f} s")
    return plain, ours, checks


def _moved(
    spark: SparkSession, target: Target, name: str, folder: Path, to: Path, local: float, check: str, say: Note
) -> Iterator[Move]:
    """The query suspended after each of its pipelines."""
    wanted = 1
    while True:
        began = time.perf_counter()
        running = headrace.run(spark, script(name, folder))
        now = _until(running, wanted)
        if now is None:
            return
        until = time.perf_counter() - began
        try:
            ticket = running.suspend(str(to / f"{name}-{wanted}"), finish=False)
        except HeadraceError:
            return  # it has finished meanwhile
        suspend = time.perf_counter() - began - until
        seconds, found = target.resume(ticket.address)
        assert found == check, f"{name} moved after {now} pipelines has another answer"
        finished, total = ticket.progress
        move = Move(name, finished / total, ticket.bytes, local, until, suspend, seconds)
        say(f"move: {name} at {move.progress:.0%}: {move.state_bytes:,} bytes, overhead {move.overhead:+.0%}")
        yield move
        wanted = finished + 1


def _until(running: RunningQuery, wanted: int) -> int | None:
    """Wait until so many pipelines are finished; None if the query is done first."""
    while running.status == "running":
        finished = running.progress().finished
        if finished >= wanted:
            return finished
        time.sleep(0.05)
    return None


def _every_stage(spark: SparkSession, name: str, folder: Path, local: float) -> float:
    """Overhead of a snapshot after each pipeline: what full separation costs (004 Figures 13 and 14)."""
    with _tickets() as to:
        began = time.perf_counter()
        running = headrace.run(spark, script(name, folder))
        wanted = 1
        while (now := _until(running, wanted)) is not None:
            try:
                running.snapshot(str(to / str(wanted)))
            except HeadraceError:
                break
            wanted = now + 1
        running.result()
        return (time.perf_counter() - began) / local - 1


def _vacate(spark: SparkSession, chosen: Sequence[str], folder: Path, n: int) -> float:
    """Seconds to suspend ``n`` queries that run side by side."""
    with _tickets() as to:
        running = [headrace.run(spark, script(chosen[i % len(chosen)], folder)) for i in range(n)]
        for each in running:
            _until(each, 1)

        def leave(numbered: tuple[int, RunningQuery]) -> None:
            with suppress(HeadraceError):  # it may be faster
                numbered[1].suspend(str(to / str(numbered[0])), finish=False)

        began = time.perf_counter()
        with ThreadPoolExecutor(n) as pool:
            list(pool.map(leave, enumerate(running)))
        return time.perf_counter() - began


def _states(spark: SparkSession, name: str, folder: Path) -> list[State]:
    """The size of the state after each stage, as Spark measured the stages; nothing is written."""
    running = headrace.run(spark, script(name, folder))
    running.result()
    stages = [stage for stage in running._planned.stages() if stage.finished]
    sizes = {stage.pipeline: states.size_of(stage)[0] for stage in stages}
    found, total = [], len(running._planned.depends)
    for n in range(1, len(stages) + 1):
        finished = [stage.pipeline for stage in stages[:n]]
        needed = running._needed(finished)
        found.append(State(name, n / total, sum(sizes[p] for p in needed), sum(sizes[p] for p in finished)))
    return found


@contextmanager
def _tickets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _target() -> Iterator[Target]:
    target = Target()
    try:
        yield target
    finally:
        target.stop()
