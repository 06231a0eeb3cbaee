"""Tests of hypotheses at a stated error rate, with fixed seeds: what fails once fails always.

Every test here rejects a true hypothesis with probability :data:`ERROR_RATE` at most. Seeds are fixed, so a
test that passes is not a matter of luck at each run; that a *wrong* sampler is rejected is shown beside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ERROR_RATE = 1e-4


def chi_square_limit(freedom: int) -> float:
    """The value a chi-square variable exceeds with probability ERROR_RATE (Wilson and Hilferty)."""
    z = NormalDist().inv_cdf(1 - ERROR_RATE)
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


def inclusion_statistic(counts: Array, runs: int, size: int) -> float:
    """Chi-square of how often each of N rows was in a sample; N - 1 degrees of freedom.

    Rows of one sample exclude each other, which makes the counts less spread than a multinomial's.
    """
    rows = len(counts)
    expected = runs * size / rows
    return float(((counts - expected) ** 2).sum() / (expected * (1 - size / rows)) * (rows - 1) / rows)


def is_uniform(counts: Array, runs: int, size: int) -> bool:
    return inclusion_statistic(counts, runs, size) < chi_square_limit(len(counts) - 1)


def distance_from_uniform(positions: Array, rows: int) -> float:
    """Kolmogorov and Smirnov's distance of positions in [0, rows) from uniform, times the root of their number."""
    seen = np.cumsum(np.bincount(positions, minlength=rows)) / len(positions)
    return float(np.abs(seen - np.arange(1, rows + 1) / rows).max() * math.sqrt(len(positions)))


def kolmogorov_limit() -> float:
    """Conservative for discrete values, and for samples without replacement."""
    return math.sqrt(-math.log(ERROR_RATE / 2) / 2)


def fits(found: Iterable[Any], expected: dict[Any, float]) -> bool:
    """Whether outcomes came with these probabilities; those expected fewer than 5 times count together."""
    counts = Counter(found)
    runs = sum(counts.values())
    assert not set(counts) - set(expected), "an outcome that cannot be"
    cells = [(counts[k], runs * p) for k, p in expected.items() if runs * p >= 5]
    rest = [(counts[k], runs * p) for k, p in expected.items() if runs * p < 5]
    if rest:
        cells.append((sum(c for c, _ in rest), max(sum(e for _, e in rest), 1e-9)))
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    return statistic < chi_square_limit(len(cells) - 1)


def share_probabilities(counts: Sequence[int], size: int) -> dict[tuple[int, ...], float]:
    """The multivariate hypergeometric distribution, enumerated."""
    total = math.comb(sum(counts), size)
    found: dict[tuple[int, ...], float] = {}

    def visit(given: tuple[int, ...], left: int, ways: int) -> None:
        if len(given) == len(counts):
            if left == 0:
                found[given] = ways / total
            return
        for k in range(min(left, counts[len(given)]) + 1):
            visit((*given, k), left - k, ways * math.comb(counts[len(given)], k))

    visit((), size, 1)
    return found


def inclusions(draw: Callable[[int], Array], rows: int, runs: int) -> Array:
    """How often each row was drawn, over runs numbered from 0."""
    counts = np.zeros(rows, np.int64)
    for run in range(runs):
        drawn = draw(run)
        assert len(np.unique(drawn)) == len(drawn), "a row twice"
        counts[drawn] += 1
    return counts
