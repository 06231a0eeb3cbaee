"""Timing side by side, and the proof that everyone answered the same.

>>> Timing((3.0, 1.0, 2.0)).median, Timing((3.0, 1.0, 2.0)).best
(2.0, 1.0)
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from bench.tpch import Case

# An avg is decimal(19,6) in Spark and a double in DuckDB: they agree to the last digit Spark keeps.
AVG_TOLERANCE = 1e-6

Note = Callable[[str], None]


class System(Protocol):
    """Something that answers a case. What it must build first is not timed."""

    @property
    def name(self) -> str: ...

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        """Seconds from input files to the answer in this process, and the answer; or :class:`Refused`."""
        ...


class Refused(Exception):
    """A system does not run this query; the report gives the reason and no figure."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The runs of one system on one case, in seconds."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def best(self) -> float:
        return min(self.runs)

    @property
    def p50(self) -> float:
        return percentile(self.runs, 0.50)

    @property
    def p99(self) -> float:
        return percentile(self.runs, 0.99)


@dataclass(slots=True)
class Stopwatch:
    """Collects the runs of a :class:`Timing`.

    >>> watch = Stopwatch()
    >>> with watch.timed():
    ...     pass
    >>> len(watch.timing.runs)
    1
    """

    seconds: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - start)

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.seconds))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case, by system: the timings of those that ran, the reasons of those that did not."""

    timings: Mapping[str, Timing]
    refusals: Mapping[str, str]


def percentile(seconds: Sequence[float], share: float) -> float:
    """The value that ``share`` of the runs do not exceed (nearest rank).

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([4.0, 1.0, 3.0, 2.0], 0.99)
    (2.0, 4.0)
    """
    ordered = sorted(seconds)
    rank = -int(-share * len(ordered) // 1)
    return ordered[max(rank, 1) - 1]


def ratios(outcomes: Mapping[str, Outcome], system: str, reference: str) -> list[float]:
    """How many times faster ``system`` is than ``reference``, for each case both ran, by medians."""
    pairs = [o.timings for o in outcomes.values() if system in o.timings and reference in o.timings]
    return [times[reference].median / times[system].median for times in pairs]


def geometric_mean(values: Sequence[float]) -> float:
    """
    >>> round(geometric_mean([2.0, 8.0]), 6)
    4.0
    """
    return math.exp(statistics.fmean(math.log(value) for value in values))


class AnswersDiffer(AssertionError):
    """Two systems gave different answers: no figure of this run means anything."""


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return (
            left is not None and right is not None and math.isclose(left, right, rel_tol=1e-12, abs_tol=AVG_TOLERANCE)
        )
    return bool(left == right)


def check_equal(what: str, answers: Iterable[tuple[str, pa.Table]]) -> None:
    """Raise :class:`AnswersDiffer` unless all answers are the same multiset; exact but for doubles.

    >>> from decimal import Decimal
    >>> one = pa.table({"revenue": [Decimal("1.20")]})
    >>> check_equal("Q6", [("a", one), ("b", pa.table({"revenue": [Decimal("1.2")]}))])
    >>> check_equal("Q6", [("a", one), ("b", pa.table({"revenue": [Decimal("1.21")]}))])
    Traceback (most recent call last):
    ...
    bench.measure.AnswersDiffer: Q6: a and b differ in revenue: 1.20, 1.21
    """
    tables = list(answers)
    if not tables:
        return
    names = tables[0][1].column_names
    exact = [n for n in names if not any(pa.types.is_floating(t.schema.field(n).type) for _, t in tables)]

    def key(row: dict[str, Any]) -> list[tuple[bool, Any]]:
        return [(row[n] is not None, row[n] if row[n] is not None else 0) for n in exact]

    (first_name, first), *others = [(name, sorted(table.to_pylist(), key=key)) for name, table in tables]
    for name, rows in others:
        if len(rows) != len(first):
            raise AnswersDiffer(f"{what}: {first_name} has {len(first)} rows, {name} has {len(rows)}")
        for expected, row in zip(first, rows, strict=True):
            for column, value in expected.items():
                if not _same(value, row[column]):
                    raise AnswersDiffer(f"{what}: {first_name} and {name} differ in {column}: {value}, {row[column]}")


def side_by_side(case: Case, systems: Sequence[System], runs: int, warmups: int, note: Note) -> Outcome:
    """Time every system on one case, in turns; all answers of all runs are checked."""
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    refusals: dict[str, str] = {}
    for turn in range(-warmups, runs):
        answers = []
        for system in systems:
            if system.name in refusals:
                continue
            label = f"{case.name} from {case.format}: {'warm-up' if turn < 0 else f'run {turn + 1}'}, {system.name}"
            try:
                elapsed, answer = system.answer(case)
            except Refused as refusal:
                refusals[system.name] = str(refusal)
                note(f"{label}: refused: {refusal}")
                continue
            answers.append((system.name, answer))
            if turn >= 0:
                seconds[system.name].append(elapsed)
            note(f"{label}: {elapsed:.2f} s")
        check_equal(case.name, answers)
    ran = {name: Timing(tuple(times)) for name, times in seconds.items() if name not in refusals}
    return Outcome(ran, refusals)
