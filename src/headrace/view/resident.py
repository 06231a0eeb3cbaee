"""Merged state in memory, updated in place: the global state of 000 §4.2.4.

Inserts append small state rows to the store and never look at the groups. A
query folds what came since the last one into the resident columns: each row goes
to its group's slot, so the work follows the new rows, not the groups. What the
store holds is always the truth; this is its merge, as of one epoch.

    state relation  ──rows since epoch e──▶  fold by group number  ──columns──▶  upper pipeline

Columns are lent to the engine without a copy, so whoever folds or reads holds
the view's lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.plan.aggregates import moments_of
from headrace.plan.exprs import Agg
from headrace.plan.pipelines import State
from headrace.types import Type, arrow_schema
from headrace.view import fold
from headrace.view.fold import Array

BATCH_ROWS = 122_880
"""Rows lent to the engine at once, so that its threads can share a scan."""

_FIXED = {"tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"}
_NULL_BITS = np.int64(-(2**63))
"""The lane of a NULL where no value of the type has these bits."""
_EVERY_NAN = np.int64(0x7FF8000000000000)


class Unfoldable(Exception):
    """A merged value does not fit its column: the store's own merge says what is wrong."""


def can_reside(state: State) -> bool:
    """Whether all of a state's columns are of kinds that fold in place."""
    return all(_key_type(c.type) for c in state.keys) and all(_partial_type(c.type, a) for c, a in state.partials)


class Resident:
    """The merged rows of one state, as of ``epoch``."""

    def __init__(self, state: State) -> None:
        self.epoch = -1
        self.rows = 0
        self._schema = arrow_schema(state.schema)
        self._keys = [_Keys(c.type) for c in state.keys]
        self._lanes = sum(k.lanes for k in self._keys)
        self._groups = np.empty((0, self._lanes), np.int64)
        self._index = np.full(16, -1, np.int64)
        self._columns = _columns_of(state)
        if not self._keys:
            self._number([], 1)  # the one group of a global aggregate is there before any row is

    @property
    def bytes(self) -> int:
        """Memory held, about: lanes, hash table, keys and columns."""
        keys = sum(k.bytes for k in self._keys)
        return int(self._groups.nbytes + self._index.nbytes + keys + sum(c.bytes for c in self._columns))

    def fold(self, rows: pa.Table, epoch: int) -> None:
        """Merge state rows in; afterwards this is the state as of ``epoch``."""
        if rows.num_rows:
            rows = rows.combine_chunks()
            arrays = [_one(rows.column(i)) for i in range(rows.num_columns)]
            keys, partials = arrays[: len(self._keys)], arrays[len(self._keys) :]
            numbers, firsts = self._number(keys, rows.num_rows)
            for column in self._columns:
                column.grow(len(self._groups))
                if not column.fold(numbers, partials):
                    raise Unfoldable
            if len(firsts):
                for key, array in zip(self._keys, keys, strict=True):
                    key.append(array.take(pa.array(firsts)))
        self.epoch = epoch

    def table(self) -> pa.Table:
        """The merged rows, over this object's own memory: read them before the next fold."""
        arrays = [k.column() for k in self._keys]
        for column in self._columns:
            column.grow(len(self._groups))
            arrays += column.arrays(self.rows)
        ordered = self._in_order(arrays)
        return pa.Table.from_batches(
            pa.Table.from_arrays(ordered, schema=self._schema).to_batches(max_chunksize=BATCH_ROWS), self._schema
        )

    def find(self, key: Sequence[pa.Array]) -> pa.Table:
        """A copy of the one row with this key, or no row; each part of the key is an array of one."""
        lanes = self._lanes_of(key, 1, learn=False)
        found = fold.find(lanes, self._index, self._groups)
        table = self.table()
        return table.slice(0, 0) if found < 0 else table.slice(found, 1).take([0])

    def _in_order(self, arrays: list[Any]) -> list[Any]:
        """The columns as the schema has them: a column object may hold several that are apart."""
        placed: list[Any] = [None] * len(arrays)
        places = [*range(len(self._keys)), *(len(self._keys) + p for c in self._columns for p in c.places)]
        for place, array in zip(places, arrays, strict=True):
            placed[place] = array
        return placed

    def _number(self, keys: list[pa.Array], rows: int) -> tuple[Array, Array]:
        lanes = self._lanes_of(keys, rows, learn=True)
        self._reserve(self.rows + rows)
        numbers, firsts = fold.number(lanes, self._index, self._groups, self.rows)
        self.rows += len(firsts)
        return numbers, firsts

    def _lanes_of(self, keys: Sequence[pa.Array], rows: int, *, learn: bool) -> Array:
        lanes = np.empty((rows, self._lanes), np.int64)
        at = 0
        for key, array in zip(self._keys, keys, strict=True):
            key.write_lanes(array, lanes[:, at : at + key.lanes], learn=learn)
            at += key.lanes
        return lanes

    def _reserve(self, rows: int) -> None:
        if rows > len(self._groups):
            self._groups = _grown(self._groups, rows)
        if 2 * rows > len(self._index):
            size = 1 << (2 * rows - 1).bit_length()
            self._index = np.full(size, -1, np.int64)
            fold.fill_index(self._groups, self.rows, self._index)


class _Keys:
    """One key column: Arrow chunks of the groups' keys, and how a value becomes lanes."""

    def __init__(self, type: Type) -> None:
        self._type = type
        self._chunks: list[pa.Array] = []
        self._codes: dict[Any, int] = {}
        self.lanes = 2 if type.is_decimal or type.name == "bigint" else 1
        self.bytes = 0

    def append(self, array: pa.Array) -> None:
        self._chunks.append(array)
        self.bytes += array.nbytes + 120 * (self._type.name in ("string", "binary")) * len(array)
        # Like a binary counter: few chunks, and each value is copied a logarithmic number of times.
        while len(self._chunks) > 1 and len(self._chunks[-2]) < 2 * len(self._chunks[-1]):
            last = self._chunks.pop()
            self._chunks[-1] = pa.concat_arrays([self._chunks[-1], last])

    def column(self) -> pa.ChunkedArray:
        return pa.chunked_array(self._chunks, self._type.arrow)

    def write_lanes(self, array: pa.Array, out: Array, *, learn: bool) -> None:
        """Write lanes that are equal exactly when the keys are; NULL equals NULL, as in GROUP BY.

        ``learn`` gives texts that are new a number of their own, else they have one that no key has.
        """
        nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        name = self._type.name
        if self._type.is_decimal:
            out[:] = _wide(array)
        elif name in ("string", "binary"):
            out[:, 0] = self._code(array, learn)
        elif self._type.is_float:
            values = _plain(array, np.float64)
            lanes = (values + 0.0).view(np.int64)  # one zero
            out[:, 0] = np.where(np.isnan(values), _EVERY_NAN, lanes)
        elif name == "boolean":
            out[:, 0] = _booleans(array)
        else:
            out[:, 0] = _plain(array, np.int64)
            if name == "bigint":
                out[:, 1] = 0
        if nulls is not None:
            out[nulls, 0] = _NULL_BITS
            if self.lanes == 2:
                out[nulls, 1] = _NULL_BITS

    def _code(self, array: pa.Array, learn: bool) -> Array:
        """A number for each text, the same for equal texts."""
        encoded = array.dictionary_encode()
        codes = self._codes
        values = encoded.dictionary.to_pylist()
        known = [codes.setdefault(v, len(codes)) if learn else codes.get(v, -1) for v in values]
        places = _plain(encoded.indices, np.int64)
        return np.array([*known, 0], np.int64)[places]


class _Column(ABC):
    """One partial column (or several that merge together)."""

    places: tuple[int, ...]

    @abstractmethod
    def grow(self, rows: int) -> None:
        """Make room for so many groups."""

    @abstractmethod
    def fold(self, numbers: Array, partials: list[pa.Array]) -> bool:
        """Merge rows into the groups of these numbers; False if a merged value does not fit."""

    @abstractmethod
    def arrays(self, rows: int) -> list[pa.Array]:
        """The merged values of so many groups, over this object's own memory."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory held."""


class _Values(_Column):
    """Values and whether they are known, folded by one loop."""

    def __init__(self, place: int, type: Type, loop: Callable[..., bool]) -> None:
        self.places = (place,)
        self._type = type
        self._loop = loop
        self._values = np.zeros((0, 2) if type.is_decimal else 0, _storage(type))
        self._known = np.zeros(0, np.uint8)

    def grow(self, rows: int) -> None:
        if rows > len(self._values):
            self._values, self._known = _grown(self._values, rows), _grown(self._known, rows)

    def fold(self, numbers: Array, partials: list[pa.Array]) -> bool:
        array = partials[self.places[0]]
        if self._type.is_decimal:
            given = _wide(array)
        elif self._type.name == "boolean":
            given = _booleans(array)
        else:
            given = _plain(array, self._values.dtype)
        return self._loop(self._values, self._known, numbers, given, _present(array))

    def arrays(self, rows: int) -> list[pa.Array]:
        if self._type.name == "boolean":
            data = pa.py_buffer(np.packbits(self._values[:rows], bitorder="little"))
        else:
            data = pa.py_buffer(self._values[:rows])
        return [pa.Array.from_buffers(self._type.arrow, rows, [_validity(self._known[:rows]), data])]

    @property
    def bytes(self) -> int:
        return int(self._values.nbytes + self._known.nbytes)


class _Moments(_Column):
    """A mean and its sum of squared deviations, with the weight both have."""

    def __init__(self, mean: int, spread: int, count: int) -> None:
        self.places = (mean, spread)
        self._count = count
        self._weights, self._means, self._spreads = (np.zeros(0) for _ in range(3))

    def grow(self, rows: int) -> None:
        if rows > len(self._weights):
            self._weights, self._means, self._spreads = (
                _grown(a, rows) for a in (self._weights, self._means, self._spreads)
            )

    def fold(self, numbers: Array, partials: list[pa.Array]) -> bool:
        counts = _plain(partials[self._count], np.int64)
        mean, spread = (_plain(partials[p], np.float64) for p in self.places)
        fold.move_means(self._weights, self._means, self._spreads, numbers, counts, mean, spread)
        return True

    def arrays(self, rows: int) -> list[pa.Array]:
        valid = _validity(self._weights[:rows] > 0)
        return [
            pa.Array.from_buffers(pa.float64(), rows, [valid, pa.py_buffer(values[:rows])])
            for values in (self._means, self._spreads)
        ]

    @property
    def bytes(self) -> int:
        return int(3 * self._weights.nbytes)


def _columns_of(state: State) -> list[_Column]:
    place = {c.name: i for i, (c, _) in enumerate(state.partials)}
    columns: list[_Column] = [
        _Moments(place[mean.name], place[spread.name], place[count.name])
        for count, mean, spread in moments_of(state.partials)
    ]
    for i, (column, agg) in enumerate(state.partials):
        if agg.fn not in ("mean", "m2"):
            columns.append(_Values(i, column.type, _loop(column.type, agg)))
    return columns


def _loop(type: Type, agg: Agg) -> Callable[..., bool]:
    if agg.fn in ("count", "sum"):
        if type.is_decimal:
            return fold.add_decimals
        return fold.add_doubles if type.is_float else fold.add_integers
    return partial(fold.keep_wide if type.is_decimal else fold.keep, agg.fn in ("max", "bool_or"))


def _key_type(type: Type) -> bool:
    return type.name in _FIXED or type.is_decimal or type.name in ("boolean", "string", "binary")


def _partial_type(type: Type, agg: Agg) -> bool:
    kinds = ("count", "sum", "min", "max", "bool_and", "bool_or", "mean", "m2")
    return agg.fn in kinds and (type.name in _FIXED or type.is_decimal or type.name == "boolean")


def _storage(type: Type) -> Any:
    """The numpy type whose memory is the Arrow type's (booleans are packed on the way out)."""
    if type.is_decimal:
        return np.int64
    if type.name == "boolean":
        return np.uint8
    if type.is_float:
        return np.float32 if type.name == "float" else np.float64
    return np.dtype(f"int{type.arrow.bit_width}")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _plain(array: pa.Array, dtype: Any) -> Array:
    """A fixed-width array's memory as numbers; what a NULL holds is anything."""
    width = array.type.bit_width // 8
    kind = "f" if pa.types.is_floating(array.type) else "i"
    values = np.frombuffer(array.buffers()[1], np.dtype(f"{kind}{width}"), len(array), array.offset * width)
    return values.astype(dtype, copy=False)


def _wide(array: pa.Array) -> Array:
    """A decimal array's memory as (low, high) halves."""
    data = array.buffers()[1]
    return np.frombuffer(data, np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)


def _booleans(array: pa.Array) -> Array:
    values: Array = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
    return values


def _present(array: pa.Array) -> Array:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    present: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return present


def _validity(known: Array) -> pa.Buffer | None:
    """Arrow's bitmap of which values there are; none is needed where all are."""
    return None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))


def _grown(array: Array, rows: int) -> Array:
    """The array with room for ``rows`` and half as many again, new slots being zero."""
    bigger = np.zeros((rows + rows // 2 + 16, *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger
