"""Columns of groups in memory, and Arrow arrays as the memory compiled loops take.

A group is a number: its place in every column. ``fold.py`` has the loops; what is here
knows which loop an aggregate's partial column takes and how its values lie in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine import fold
from headrace.engine.fold import Array
from headrace.plan.moments import MOMENTS
from headrace.types import Type

FIXED = {"tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"}
"""Types whose values are one number each."""
NULL_BITS = np.int64(-(2**63))
"""The lane of a NULL where no value of the type has these bits."""
_EVERY_NAN = np.int64(0x7FF8000000000000)
_ALL = np.zeros(0, np.bool_)
"""Which values are present, said to a loop, where all are."""


class Unfoldable(Exception):
    """A merged value does not fit its column."""


class PartialColumn(ABC):
    """One partial column (or several that merge together)."""

    places: tuple[int, ...]

    @abstractmethod
    def grow(self, rows: int) -> None:
        """Make room for so many groups."""

    @abstractmethod
    def fold(self, numbers: Array, partials: Sequence[pa.Array]) -> bool:
        """Merge rows into the groups of these numbers; False if a merged value does not fit."""

    @abstractmethod
    def arrays(self, groups: slice | Array) -> list[pa.Array]:
        """The merged values of groups: of a range of them over this object's own memory, of others as a copy."""

    @abstractmethod
    def is_zero(self, numbers: Array) -> Array:
        """Which of the groups of these numbers have nothing here, as before any row."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory held."""


class ValueColumn(PartialColumn):
    """Values and whether they are known, folded by one loop."""

    def __init__(self, place: int, type: Type, fn: str, groups: int = 0) -> None:
        self.places = (place,)
        self._type = type
        self._loop = loop_of(type, fn)
        self._values = np.zeros((groups, 2) if type.is_decimal else groups, _storage(type))
        self._known = np.zeros(groups, np.uint8)

    def grow(self, rows: int) -> None:
        if rows > len(self._values):
            self._values, self._known = grown(self._values, rows), grown(self._known, rows)

    def fold(self, numbers: Array, partials: Sequence[pa.Array]) -> bool:
        array = partials[self.places[0]]
        if self._type.is_decimal:
            given = wide(array)
        elif self._type.name == "boolean":
            given = booleans(array)
        else:
            given = plain(array, self._values.dtype)
        return self._loop(self._values, self._known, numbers, given, chosen(array))

    def arrays(self, groups: slice | Array) -> list[pa.Array]:
        values = self._values[groups]
        count = len(values)
        if self._type.name == "boolean":
            values = np.packbits(values, bitorder="little")
        buffers = [_validity(self._known[groups]), pa.py_buffer(values)]
        return [pa.Array.from_buffers(self._type.arrow, count, buffers)]

    def is_zero(self, numbers: Array) -> Array:
        found = np.equal(self._values[numbers], 0)
        return np.logical_and.reduce(found, axis=1) if self._type.is_decimal else found

    @property
    def bytes(self) -> int:
        return int(self._values.nbytes + self._known.nbytes)


class MomentColumns(PartialColumn):
    """A mean, its sum of squared deviations and its rest, with the weight they have (``plan/moments.py``)."""

    def __init__(self, mean: int, spread: int, rest: int, count: int) -> None:
        self.places = (mean, spread, rest)
        self._count = count
        self._weights, self._means, self._spreads, self._rests = (np.zeros(0) for _ in range(4))

    def grow(self, rows: int) -> None:
        if rows > len(self._weights):
            self._weights, self._means, self._spreads, self._rests = (
                grown(a, rows) for a in (self._weights, self._means, self._spreads, self._rests)
            )

    def fold(self, numbers: Array, partials: Sequence[pa.Array]) -> bool:
        counts = plain(partials[self._count], np.int64)
        mean, spread, rest = (plain(partials[p], np.float64) for p in self.places)
        kept = (self._weights, self._means, self._rests, self._spreads)
        fold.move_means(*kept, numbers, counts, mean, rest, spread)
        return True

    def arrays(self, groups: slice | Array) -> list[pa.Array]:
        weights = self._weights[groups]
        return [
            pa.Array.from_buffers(pa.float64(), len(weights), [_validity(weights > 0), pa.py_buffer(values[groups])])
            for values in (self._means, self._spreads, self._rests)
        ]

    def is_zero(self, numbers: Array) -> Array:
        return np.equal(self._weights[numbers], 0)

    @property
    def bytes(self) -> int:
        return int(4 * self._weights.nbytes)


def lanes_of(type: Type) -> int:
    """How many 64-bit lanes a key of this type takes."""
    return 2 if type.is_decimal or type.name == "bigint" else 1


def write_lanes(type: Type, array: pa.Array, out: Array, code: Callable[[pa.Array], Array]) -> None:
    """Write lanes that are equal exactly when the keys are; NULL equals NULL, as in GROUP BY.

    ``code`` gives each text a number, equal texts the same one.
    """
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    name = type.name
    if type.is_decimal:
        out[:] = wide(array)
    elif name in ("string", "binary"):
        out[:, 0] = code(array)
    elif type.is_float:
        values = plain(array, np.float64)
        lanes = (values + 0.0).view(np.int64)  # one zero
        out[:, 0] = np.where(np.isnan(values), _EVERY_NAN, lanes)
    elif name == "boolean":
        out[:, 0] = booleans(array)
    else:
        out[:, 0] = plain(array, np.int64)
        if name == "bigint":
            out[:, 1] = 0
    if nulls is not None:
        out[nulls, 0] = NULL_BITS
        if out.shape[1] == 2:
            out[nulls, 1] = NULL_BITS


def is_key(type: Type) -> bool:
    """Whether groups can be found by a key of this type."""
    return type.name in FIXED or type.is_decimal or type.name in ("boolean", "string", "binary")


def is_partial(type: Type, fn: str) -> bool:
    """Whether a partial column of this type can be merged in place."""
    kinds = ("count", "sum", "min", "max", "bool_and", "bool_or", *MOMENTS)
    return fn in kinds and (type.name in FIXED or type.is_decimal or type.name == "boolean")


def loop_of(type: Type, fn: str) -> Callable[..., bool]:
    """The compiled loop that merges values of an aggregate's partial column."""
    if fn in ("count", "sum"):
        if type.is_decimal:
            return fold.add_decimals
        return fold.add_doubles if type.is_float else fold.add_integers
    return partial(fold.keep_wide if type.is_decimal else fold.keep, fn in ("max", "bool_or"))


def _storage(type: Type) -> Any:
    """The numpy type whose memory is the Arrow type's (booleans are packed on the way out)."""
    if type.is_decimal:
        return np.int64
    if type.name == "boolean":
        return np.uint8
    if type.is_float:
        return np.float32 if type.name == "float" else np.float64
    return np.dtype(f"int{type.arrow.bit_width}")


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def plain(array: pa.Array, dtype: Any) -> Array:
    """A fixed-width array's memory as numbers; what a NULL holds is anything."""
    width = array.type.bit_width // 8
    kind = "f" if pa.types.is_floating(array.type) else "i"
    values = np.frombuffer(array.buffers()[1], np.dtype(f"{kind}{width}"), len(array), array.offset * width)
    return values.astype(dtype, copy=False)


def wide(array: pa.Array) -> Array:
    """A decimal array's memory as (low, high) halves."""
    data = array.buffers()[1]
    return np.frombuffer(data, np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)


def booleans(array: pa.Array) -> Array:
    """A boolean array as bytes; NULL is false."""
    values: Array = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
    return values


def present(array: pa.Array) -> Array:
    """Which values are not NULL."""
    valid: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def chosen(array: pa.Array) -> Array:
    """Which values are not NULL, as a loop is told."""
    return present(array) if array.null_count else _ALL


def _validity(known: Array) -> pa.Buffer | None:
    """Arrow's bitmap of which values there are; none is needed where all are."""
    return None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))


def grown(array: Array, rows: int) -> Array:
    """The array with room for ``rows`` and half as many again, new slots being zero."""
    bigger = np.zeros((rows + rows // 2 + 16, *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger
