"""Every row, and every pair of rows, is in a sample equally often, however the input is cut and spread."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statistics_of_samples import (
    chi_square_limit,
    distance_from_uniform,
    fits,
    inclusions,
    is_uniform,
    kolmogorov_limit,
    share_probabilities,
)

from headrace.errors import DataError
from headrace.sample import Reservoir, Sampled, merge, shares
from headrace.sample.shares import Method, shares_by_threshold
from headrace.sample.skips import NEVER, Skips

Array = np.ndarray[Any, Any]
METHODS: list[Method] = ["fenwick", "hypergeometric", "ranks"]
SIZES = [1, 7, 59]
SPLITS = {
    "even": [15, 15, 15, 15],
    "skewed": [52, 1, 0, 7],
    "one worker": [300],
    "a worker with less than its part": [2, 198],
    "many workers": [1, 9, 3, 0, 17, 5, 25],
}


def rows(start: int, end: int) -> pa.Table:
    return pa.table({"i": np.arange(start, end)})


def chunks(total: int, rng: np.random.Generator) -> list[int]:
    """The rows of a worker in batches of any length, empty ones too."""
    cuts = np.sort(rng.integers(0, total + 1, rng.integers(0, 5)))
    return np.diff([0, *cuts, total]).tolist()


def drawn(counts: list[int], size: int, seed: int, method: Method) -> Array:
    """A sample by one reservoir a worker, merged: the positions of its rows in all of them."""
    rng = np.random.default_rng(seed)
    parts, start = [], 0
    for count in counts:
        local = Reservoir(size, rng)
        local.add(rows(start, start))
        for length in chunks(count, rng):
            local.add(rows(start, start + length))
            start += length
        parts.append(Sampled(local.rows(), local.seen))
    merged = merge(parts, size, rng, method)
    assert merged.seen == sum(counts)
    return merged.rows.column("i").to_numpy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("split", SPLITS)
def test_every_row_is_drawn_equally_often(split: str, size: int) -> None:
    """Each split meets every way to draw shares, with one of the sizes."""
    counts, runs = SPLITS[split], 400
    method = METHODS[(list(SPLITS).index(split) + SIZES.index(size)) % 3]
    found = inclusions(lambda run: drawn(counts, size, run, method), sum(counts), runs)
    assert is_uniform(found, runs, size)
    assert distance_from_uniform(np.repeat(np.arange(len(found)), found), len(found)) < kolmogorov_limit()


@pytest.mark.parametrize("method", METHODS)
def test_a_sample_of_samples_is_a_sample(method: Method) -> None:
    """What was merged is merged again, with a sample that was not: of all rows each is as likely."""
    runs, size, counts = 400, 6, [20, 4, 16]

    def twice(run: int) -> Array:
        rng = np.random.default_rng(run)
        starts = np.cumsum([0, *counts[:-1]])
        kept = [s + rng.choice(n, min(size, n), replace=False) for s, n in zip(starts, counts, strict=True)]
        a, b, c = (Sampled(pa.table({"i": rows}), count) for rows, count in zip(kept, counts, strict=True))
        merged = merge([merge([a, b], size, rng, method), c], size, rng, method)
        assert merged.seen == 40
        return merged.rows.column("i").to_numpy()

    assert is_uniform(inclusions(twice, sum(counts), runs), runs, size)


@pytest.mark.parametrize("method", METHODS)
def test_every_subset_is_drawn_equally_often(method: Method) -> None:
    """Enumerated, so that pairs, triples and all else are: no two rows favour or avoid each other."""
    runs, total, size = 1_200, 6, 3
    subsets = Counter(tuple(sorted(drawn([4, 0, 2], size, run, method).tolist())) for run in range(runs))
    every = dict.fromkeys(combinations(range(total), size), 1 / 20)
    assert fits(subsets.elements(), every)
    pairs = Counter(pair for subset in subsets.elements() for pair in combinations(subset, 2))
    expected = runs * 3 / 15
    assert max(abs(n - expected) for n in pairs.values()) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("counts", "size"), [((5, 3, 4), 6), ((20, 1, 2), 4), ((9, 9), 17)])
def test_shares_are_multivariate_hypergeometric(counts: tuple[int, ...], size: int, method: Method) -> None:
    rng = np.random.default_rng(5)
    found = [tuple(shares(counts, size, rng, method).tolist()) for _ in range(4_000)]
    assert fits(found, share_probabilities(counts, size))


def biased_shares(kind: str, counts: list[int], size: int, rng: np.random.Generator) -> Array:
    """Merges that look right: in proportion, with replacement, or the first worker served first."""
    held = np.array(counts)
    if kind == "in proportion":
        part = size * held / held.sum()
        given = part.astype(int)
        given[np.argsort(given - part)[: size - given.sum()]] += 1
        return given
    if kind == "rows are not taken out":
        return np.minimum(rng.multinomial(size, held / held.sum()), held)
    return np.minimum(np.maximum(size - np.cumsum(held) + held, 0), held)


@pytest.mark.parametrize("kind", ["in proportion", "rows are not taken out", "the first worker first"])
def test_a_biased_merge_is_noticed(kind: str) -> None:
    counts, size = [9, 3, 4], 6
    rng = np.random.default_rng(3)
    found = [tuple(int(k) for k in biased_shares(kind, counts, size, rng)) for _ in range(4_000)]
    expected = share_probabilities(counts, size)
    assert any(key not in expected for key in found) or not fits(found, expected)


def test_a_biased_merge_shows_in_how_often_rows_are_drawn() -> None:
    """The first rows of each reservoir instead of random ones; equal shares instead of drawn ones."""
    counts, size, runs = [40, 20], 10, 400

    def equal_shares(run: int) -> Array:
        rng = np.random.default_rng(run)
        return np.concatenate([rng.choice(40, 5, replace=False), 40 + rng.choice(20, 5, replace=False)])

    assert not is_uniform(inclusions(equal_shares, 60, runs), runs, size)

    def first_of_unshuffled(run: int) -> Array:
        rng = np.random.default_rng(run)
        found, start = [], 0
        for count, share in zip(counts, shares(counts, size, rng), strict=True):
            skips = Skips(size, rng)
            slots = np.zeros(size, np.int64)
            places, taken = skips.advance(count)
            slots[taken] = places
            found.append(start + slots[:share])
            start += count
        return np.concatenate(found)

    assert not is_uniform(inclusions(first_of_unshuffled, 60, runs), runs, size)


@pytest.mark.parametrize("threshold", [1.0, 0.5, 0.02])
def test_priorities_merge_reservoirs_uniformly(threshold: float) -> None:
    """The lowest of all are the sample of all, whatever of the rest was never looked at."""
    counts, size, runs = [40, 1, 19], 4, 800
    lows: list[float] = []

    def lowest(run: int) -> Array:
        rng = np.random.default_rng(run)
        kept, start = [], 0
        for count in counts:
            local = Reservoir(size, rng, threshold=threshold)
            for length in chunks(count, rng):
                local.add(rows(start, start + length))
                start += length
            table, priorities = local.with_priorities()
            found = table.column("i").to_numpy() if len(priorities) else []
            kept += list(zip(priorities, found, strict=True))
        chosen = sorted(kept)[:size]
        lows.append(len(kept) and chosen[0][0])
        return np.array([i for _, i in chosen], np.int64)

    found = inclusions(lowest, 60, runs)
    if threshold > 0.1:
        assert is_uniform(found, runs, size)
        # The lowest of 60 uniform priorities is below x with probability 1 - (1 - x)^60.
        at = np.sort(1 - (1 - np.array(lows)) ** 60)
        assert np.abs(at - np.arange(1, runs + 1) / runs).max() * np.sqrt(runs) < kolmogorov_limit()
    else:  # few rows are that low, and each is with a probability of its own
        assert found.sum() / runs == pytest.approx(60 * threshold, rel=0.1)
        assert ((found - found.mean()) ** 2 / found.mean()).sum() < chi_square_limit(59)


@given(
    st.lists(st.integers(0, 400), max_size=8),
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.sampled_from([1, 10_000]),
)
def test_a_reservoir_has_so_many_different_rows(lengths: list[int], size: int, seed: int, pinned: int) -> None:
    reservoir = Reservoir(size, np.random.default_rng(seed), pinned_bytes=pinned)
    reservoir.add(rows(0, 0))
    start = 0
    for length in lengths:
        reservoir.add(rows(start, start + length))
        start += length
    found = reservoir.rows().column("i").to_numpy()
    assert reservoir.seen == start
    assert len(np.unique(found)) == len(found) == min(size, start)
    assert not len(found) or (found.min() >= 0 and found.max() < start)


@given(st.lists(st.integers(0, 3_000), max_size=6), st.integers(1, 50), st.integers(0, 2**32), st.floats(0.01, 1))
def test_selections_do_not_depend_on_batches(lengths: list[int], size: int, seed: int, threshold: float) -> None:
    together, apart = (Skips(size, np.random.default_rng(seed), threshold) for _ in range(2))
    places, slots = together.advance(sum(lengths))
    starts = np.cumsum([0, *lengths])
    pieces = [apart.advance(length) for length in lengths]
    assert places.tolist() == [s + p for s, (found, _) in zip(starts, pieces, strict=False) for p in found.tolist()]
    assert slots.tolist() == [s for _, found in pieces for s in found.tolist()]
    assert together.threshold == apart.threshold


def test_a_run_may_be_longer_than_anybody_waits_for() -> None:
    skips = Skips(3, np.random.default_rng(0))
    selected = sum(len(skips.advance(1 << 55)[0]) for _ in range(64))
    assert skips.seen == NEVER and 50 < selected < 250
    assert 0 < skips.threshold < 1e-15


def test_large_counts_are_shared_exactly() -> None:
    """NumPy's own draw stops at 10^9: beyond it ranks are drawn, and the mean and spread are those they should have."""
    counts = [3 * 10**12, 10**12, 0, 17]
    found = np.array([shares(counts, 2_000, np.random.default_rng(seed)) for seed in range(400)])
    assert (found.sum(axis=1) == 2_000).all() and (found[:, 2] == 0).all()
    assert found[:, 0].mean() == pytest.approx(1_500, abs=5)
    assert found[:, 0].std() == pytest.approx(np.sqrt(2_000 * 0.75 * 0.25), rel=0.15)
    with pytest.raises(OverflowError):
        shares([2**62, 2**62], 5, np.random.default_rng(0))


def test_texts_nested_values_and_nulls_come_whole() -> None:
    values = [{"t": None if i % 3 == 0 else f"text {i} that is too long to stand in its view", "n": [i, None]}
              for i in range(500)]  # fmt: skip
    table = pa.Table.from_pylist(values)
    for text in (pa.string(), pa.string_view()):
        reservoir = Reservoir(40, np.random.default_rng(4))
        for start in range(0, 500, 70):
            batch = table.slice(start, 70)
            reservoir.add(batch.set_column(0, "t", batch.column(0).cast(text)))
        found = reservoir.rows()
        assert found.schema.field("t").type == pa.string()
        assert len({r["n"][0] for r in found.to_pylist()}) == 40
        assert all(row == values[row["n"][0]] for row in found.to_pylist())


def test_samples_that_cannot_be_merged_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="SAMPLE_WITHOUT_CARDINALITY"):
        merge([Sampled(rows(0, 3), None)], 2, rng)
    with pytest.raises(DataError, match="SAMPLE_WITHOUT_CARDINALITY"):
        merge([Sampled(rows(0, 3), 2)], 2, rng)
    with pytest.raises(DataError, match="SAMPLE_TOO_SMALL"):
        merge([Sampled(rows(0, 3), 10), Sampled(rows(3, 9), 10)], 5, rng)
    assert merge([], 5, rng).seen == 0
    assert merge([Sampled(rows(0, 3), 3), Sampled(rows(3, 8), 10)], 5, rng).rows.num_rows == 5


@pytest.mark.parametrize(("counts", "size"), [((5, 3, 4), 3), ((20, 1, 2), 4), ((9, 0, 9), 7)])
def test_thresholds_give_the_same_shares_as_counts(counts: tuple[int, ...], size: int) -> None:
    def given(seed: int) -> tuple[int, ...]:
        rng = np.random.default_rng(seed)
        held, thresholds = [], []
        for count in counts:
            skips = Skips(size, rng)
            skips.advance(count)
            held.append(skips.filled)
            thresholds.append(skips.threshold)
        return tuple(shares_by_threshold(np.array(held), np.array(thresholds), size, rng).tolist())

    assert fits((given(seed) for seed in range(2_500)), share_probabilities(counts, size))
