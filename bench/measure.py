"""Timing side by side, and the proof that everyone answered the same.

>>> Timing((3.0, 1.0, 2.0)).median, Timing((3.0, 1.0, 2.0)).best
(2.0, 1.0)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from bench.tpch import Case

# An avg is decimal(19,6) in Spark and a double in DuckDB: they agree to the last digit Spark keeps.
AVG_TOLERANCE = 1e-6


class System(Protocol):
    """Something that answers a case. What it must build first is not timed."""

    @property
    def name(self) -> str: ...

    def answer(self, case: Case) -> tuple[float, pa.Table]:
        """Seconds from input files to the answer in this process, and the answer."""
        ...


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


def percentile(seconds: Sequence[float], share: float) -> float:
    """The value that ``share`` of the runs do not exceed (nearest rank).

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([4.0, 1.0, 3.0, 2.0], 0.99)
    (2.0, 4.0)
    """
    ordered = sorted(seconds)
    rank = -int(-share * len(ordered) // 1)
    return ordered[max(rank, 1) - 1]


class AnswersDiffer(AssertionError):
    """Two systems gave different answers: no figure of this run means anything."""


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in row.values() if isinstance(value, str | None))


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return left is not None and right is not None and abs(float(left) - float(right)) <= AVG_TOLERANCE
    if isinstance(left, Decimal | int) and isinstance(right, Decimal | int):
        return Decimal(left) == Decimal(right)
    return bool(left == right)


def check_equal(case: Case, answers: Iterable[tuple[str, pa.Table]]) -> None:
    """Raise :class:`AnswersDiffer` unless all answers are the same multiset; exact but for doubles.

    >>> from pathlib import Path
    >>> case = Case("Q6", "csv", Path("x"))
    >>> one = pa.table({"revenue": [Decimal("1.20")]})
    >>> check_equal(case, [("a", one), ("b", pa.table({"revenue": [Decimal("1.2")]}))])
    >>> check_equal(case, [("a", one), ("b", pa.table({"revenue": [Decimal("1.21")]}))])
    Traceback (most recent call last):
    ...
    bench.measure.AnswersDiffer: Q6 from CSV: a and b differ in revenue: 1.20, 1.21
    """
    (first_name, first), *others = [(name, sorted(table.to_pylist(), key=_key)) for name, table in answers]
    for name, rows in others:
        if len(rows) != len(first):
            raise AnswersDiffer(f"{case.name}: {first_name} has {len(first)} rows, {name} has {len(rows)}")
        for expected, row in zip(first, rows, strict=True):
            for column, value in expected.items():
                if not _same(value, row[column]):
                    raise AnswersDiffer(
                        f"{case.name}: {first_name} and {name} differ in {column}: {value}, {row[column]}"
                    )


def side_by_side(
    case: Case, systems: Sequence[System], runs: int, warmups: int, note: Callable[[str], None]
) -> dict[str, Timing]:
    """Time every system on one case, in turns; all answers of all runs are checked."""
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    for turn in range(-warmups, runs):
        answers = []
        for system in systems:
            elapsed, answer = system.answer(case)
            answers.append((system.name, answer))
            if turn >= 0:
                seconds[system.name].append(elapsed)
            note(f"{case.name}: {'warm-up' if turn < 0 else f'run {turn + 1}'}, {system.name}: {elapsed:.2f} s")
        check_equal(case, answers)
    return {name: Timing(tuple(times)) for name, times in seconds.items()}
