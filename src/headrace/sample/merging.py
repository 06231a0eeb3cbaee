"""Samples of disjoint rows, merged into a sample of them all (000 §5.2.1).

A sample is rows and how many rows it was drawn from. Without that number two samples cannot be merged: nobody
knows how many rows each should give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.errors import DataError
from headrace.sample.shares import Method, shares


@dataclass(frozen=True)
class Sampled:
    """A uniform sample of ``seen`` rows."""

    rows: pa.Table
    seen: int | None
    """None if nobody knows."""


def merge(samples: Sequence[Sampled], size: int, rng: np.random.Generator, method: Method | None = None) -> Sampled:
    """A uniform sample of ``size`` of all the rows that the samples were drawn from, which share none.

    >>> a, b = (Sampled(pa.table({"i": rows}), seen) for rows, seen in (([1, 2, 3], 50), ([7], 1)))
    >>> merged = merge([a, b], 3, np.random.default_rng(1))
    >>> merged.seen, merged.rows.num_rows
    (51, 3)
    """
    counts = [_seen(sample) for sample in samples]
    for sample, seen in zip(samples, counts, strict=True):
        held = sample.rows.num_rows
        if held < min(size, seen):
            raise DataError(
                "SAMPLE_TOO_SMALL",
                f"a sample of {held} of {seen} rows cannot give its share of a sample of {size}: it may be more",
                hint=f"ask for {held} rows or fewer, or draw the larger sample anew",
            )
    parts = []
    for sample, share in zip(samples, shares(counts, size, rng, method), strict=True):
        chosen = np.sort(rng.choice(sample.rows.num_rows, int(share), replace=False, shuffle=False))
        parts.append(sample.rows.take(pa.array(chosen)))
    return Sampled(pa.concat_tables(parts) if parts else pa.table({}), sum(counts))


def _seen(sample: Sampled) -> int:
    if sample.seen is None:
        raise DataError(
            "SAMPLE_WITHOUT_CARDINALITY",
            "a sample cannot be merged without the number of rows it was drawn from",
            hint="keep it with the sample: Sampled(rows, seen)",
        )
    if sample.seen < sample.rows.num_rows:
        raise DataError(
            "SAMPLE_WITHOUT_CARDINALITY",
            f"a sample of {sample.rows.num_rows} rows cannot have been drawn from {sample.seen}",
            hint="give the number of rows it was drawn from",
        )
    return sample.seen
