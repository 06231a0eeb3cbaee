"""How many rows of a sample each worker gives (000 §5.2.2): jointly multivariate hypergeometric.

Two ways, equal in distribution. For samples that are small beside the workers, a slot at a time (Algorithm 5.4):
rank a random row of all that are left, find its worker in a Fenwick tree, take the row out. Integers only, so it is
exact for any counts.
For larger ones, a worker at a time, by one hypergeometric draw each. NumPy draws those for fewer than 10^9 rows;
of more, the rows' ranks are drawn at once, without replacement, and counted by worker, which is exact too.

Errata: Algorithm 5.4 takes the row out of the tree at its worker, not at its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]
Method = Literal["fenwick", "hypergeometric", "ranks"]

FENWICK_ROWS = 1.5
"""For each worker; samples up to this many rows are shared out slot by slot. Measured (docs/benchmarks/samples.md):
a slot costs about what two thirds of a worker's hypergeometric draw do, whatever the number of either. 000 has the
cross-over at 750 to 1,000 rows for any number of workers."""
_NUMPY_LIMIT = 1_000_000_000


def shares(counts: Sequence[int] | Array, size: int, rng: np.random.Generator, method: Method | None = None) -> Array:
    """How many rows of each worker are in a uniform sample of ``size`` of all their rows.

    >>> shares([5, 0, 1], 10, np.random.default_rng(1)).tolist()
    [5, 0, 1]
    >>> int(shares([10**12, 3, 10**17], 1_000, np.random.default_rng(1)).sum())
    1000
    """
    rows = np.asarray(counts, np.int64)
    total = int(rows.sum())
    if rows.sum(dtype=np.float64) >= 2.0**63:
        raise OverflowError("a sample of 2^63 rows or more")
    wanted = min(size, total)
    if wanted == total:
        return rows.copy()
    if method is None:
        method = (
            "fenwick" if wanted <= FENWICK_ROWS * len(rows) else "hypergeometric" if total < _NUMPY_LIMIT else "ranks"
        )
    if method == "hypergeometric":
        drawn: Array = rng.multivariate_hypergeometric(rows, wanted, method="marginals")
        return drawn
    if method == "ranks":
        ranks = rng.choice(total, wanted, replace=False, shuffle=False)
        return np.bincount(np.searchsorted(np.cumsum(rows), ranks, side="right"), minlength=len(rows))
    ranks = rng.integers(0, total - np.arange(wanted))
    found: Array = _fenwick_shares(rows, ranks)
    return found


def shares_by_threshold(held: Array, thresholds: Array, size: int, rng: np.random.Generator) -> Array:
    """The same, of workers who do not know how many rows they saw, but what their reservoirs' highest priority is.

    Given that, a reservoir's other priorities are uniform below it, and nothing tells which row has which. So they
    are drawn here anew, and the lowest of all counted by worker. A threshold of 1 says the worker has all its rows.

    >>> shares_by_threshold(np.array([3, 3]), np.array([1e-9, 0.5]), 3, np.random.default_rng(1)).tolist()
    [3, 0]
    """
    owners = np.repeat(np.arange(len(held)), held)
    wanted = min(size, len(owners))
    priorities = rng.random(len(owners)) * np.asarray(thresholds)[owners]
    full = np.flatnonzero((np.asarray(thresholds) < 1.0) & (held > 0))
    priorities[(np.cumsum(held) - 1)[full]] = np.asarray(thresholds)[full]
    lowest = np.argpartition(priorities, wanted - 1)[:wanted] if wanted else owners[:0]
    return np.bincount(owners[lowest], minlength=len(held))


@njit(cache=True, nogil=True)
def _fenwick_shares(rows: Array, ranks: Array) -> Array:  # pragma: no cover - compiled
    """The worker of each rank among the rows that are left, counted; a rank is below what is left by then."""
    workers = rows.shape[0]
    tree = np.zeros(workers + 1, np.int64)
    for i in range(workers):
        tree[i + 1] += rows[i]
        above = (i + 1) + ((i + 1) & -(i + 1))
        if above <= workers:
            tree[above] += tree[i + 1]
    top = 1
    while top * 2 <= workers:
        top *= 2
    given = np.zeros(workers, np.int64)
    for rank in ranks:
        at, step = 0, top
        while step > 0:
            if at + step <= workers and tree[at + step] <= rank:
                at += step
                rank -= tree[at]
            step //= 2
        given[at] += 1
        at += 1
        while at <= workers:
            tree[at] -= 1
            at += at & -at
    return given
