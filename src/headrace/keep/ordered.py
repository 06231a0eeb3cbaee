"""Groups of a state in the order of their keys: ranges of it are found without looking at the others.

A group keeps its slot and its key for as long as it is there, so what was sorted once stays sorted; only new groups
have to be put in order. That is done in *runs*, as new ones come: of two runs of about one size one is made, so there
are few of them, and each group is sorted a logarithmic number of times.

The order is Spark's: NULL comes first, NaN is the largest number, and text goes by its UTF-8 bytes.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.columns import one_chunk, plain
from headrace.engine.fold import Array
from headrace.types import Type

Part = tuple[Any, ...]
"""A part of a key as Python compares it: whether it is not NULL, its value, and 0; 1 is just above it, -1 below."""
Bound = tuple[Part, ...]
"""The first parts of a key."""


@dataclass(frozen=True)
class KeyRange:
    """A range of groups, in the order of some key columns."""

    by: tuple[int, ...]
    """Which key columns of the state, the first first."""
    low: Bound = ()
    """The first parts that are not below the range; its end counts, too."""
    high: Bound = ()
    limit: int | None = None
    """So many of the first are enough."""
    backwards: bool = False
    """From the last one on."""


def sortable(type: Type, array: pa.Array) -> pa.Array:
    """Values that Arrow sorts, and Python compares, as Spark orders the given ones."""
    if type.is_float:
        values = plain(array.cast(pa.float64()), np.float64) + 0.0
        bits = np.where(np.isnan(values), np.float64(np.nan), values).view(np.int64)
        bits = np.where(
            np.isnan(values), np.iinfo(np.int64).max, np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
        )
        missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        return pa.array(bits, pa.int64(), mask=missing)
    if type.name == "boolean":
        return array.cast(pa.int8())
    if type.name == "date":
        return array.cast(pa.int32())
    if type.name in ("timestamp", "timestamp_ntz"):
        return array.cast(pa.int64())
    return array


def comparable(type: Type, value: pa.Array) -> Part:
    """The one value of an array as Python compares it: NULL is below all others."""
    found = sortable(type, value)[0].as_py()
    return found is not None, found, 0


def part_of(type: Type, value: Any) -> Part:
    """A value of this type as Python compares it."""
    return comparable(type, pa.array([value], type.arrow))


Take = Callable[[Array], Sequence[pa.ChunkedArray]]
"""The keys of some slots, column by column."""


class Ordered:
    """The slots of a state's groups, in runs that are sorted by some key columns."""

    def __init__(self, by: Sequence[int], types: Sequence[Type]) -> None:
        self._by = by
        self._types = types
        """Of all key columns."""
        self._runs: list[Array] = []
        self._known = 0

    @property
    def bytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def catch_up(self, slots: int, take: Take) -> None:
        """Take in the slots that are new."""
        if slots == self._known:
            return
        new, self._known = np.arange(self._known, slots), slots
        while self._runs and len(self._runs[-1]) < 2 * len(new):
            new = np.concatenate([self._runs.pop(), new])
        self._runs.append(self._sorted(new, take))

    def _sorted(self, slots: Array, take: Take) -> Array:
        keys = take(slots)
        columns: list[pa.Array] = []
        for i in self._by:
            column = one_chunk(keys[i])
            columns += [column.is_valid()] if column.null_count else []
            columns.append(sortable(self._types[i], column))
        names = [f"k{i}" for i in range(len(columns))]
        order = pc.sort_indices(pa.table(columns, names=names), sort_keys=[(name, "ascending") for name in names])
        found: Array = slots[order.to_numpy()]
        return found

    def find(
        self, span: KeyRange, of: Callable[[int, int], pa.Array], take: Take, is_there: Callable[[Array], Array]
    ) -> Array:
        """The slots of a range, in order; ``of`` gives a key column of a slot, ``is_there`` says which are groups."""

        def parts(count: int) -> Callable[[Any], Bound]:
            return lambda slot: tuple(comparable(self._types[i], of(i, int(slot))) for i in self._by[:count])

        found = []
        for run in self._runs:
            start = bisect.bisect_left(run, span.low, key=parts(len(span.low))) if span.low else 0
            end = bisect.bisect_right(run, span.high, key=parts(len(span.high))) if span.high else len(run)
            found.append(_first(run[start:end], span, is_there))
        slots = np.concatenate(found) if found else np.zeros(0, np.int64)
        if sum(map(bool, map(len, found))) > 1:
            slots = self._sorted(slots, take)
            if span.limit is not None:
                slots = slots[-span.limit :] if span.backwards else slots[: span.limit]
        return slots


def _first(run: Array, span: KeyRange, is_there: Callable[[Array], Array]) -> Array:
    """The slots of a sorted range that are groups; as many as are wanted."""
    if span.limit is None:
        return run[is_there(run)]
    found: list[Array] = []
    wanted = span.limit
    for part in _parts(run, max(1_024, wanted), span.backwards):
        left = part[is_there(part)]
        found.append(left[-wanted:] if span.backwards and wanted else left[:wanted])
        wanted -= len(found[-1])
        if wanted <= 0:
            break
    return np.concatenate([run[:0], *(reversed(found) if span.backwards else found)])


def _parts(run: Array, size: int, backwards: bool) -> Iterator[Array]:
    starts = range(0, len(run), size)
    for start in starts:
        yield run[max(0, len(run) - start - size) : len(run) - start] if backwards else run[start : start + size]
