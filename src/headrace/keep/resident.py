"""Merged state in memory, updated in place: the global state of 000 §4.2.4.

Inserts append small state rows to the store and never look at the groups. A
query folds what came since the last one into the resident columns: each row goes
to its group's slot, so the work follows the new rows, not the groups. What the
store holds is always the truth; this is its merge, as of one epoch.

    state relation  ──rows since epoch e──▶  fold by group number  ──columns──▶  upper pipeline

A group whose rows were all taken back has zeros in its slot and is not shown. The slot waits for the group to come
again; when more wait than are in use, what is left is folded anew. So memory follows the groups there are, and a
group that goes costs no more than one that comes.

Columns are lent to the engine without a copy, so whoever folds or reads holds
the view's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine import fold
from headrace.engine.columns import (
    MomentColumns,
    PartialColumn,
    Unfoldable,
    ValueColumn,
    grown,
    is_key,
    is_partial,
    lanes_of,
    one_chunk,
    plain,
    write_lanes,
)
from headrace.engine.fold import Array
from headrace.engine.key_index import KeyIndex, hashes_of
from headrace.keep.ordered import KeyRange, Ordered
from headrace.plan.aggregates import moments_of
from headrace.plan.moments import MOMENTS
from headrace.plan.pipelines import State
from headrace.types import Type, arrow_schema

BATCH_ROWS = 122_880
"""Rows lent to the engine at once, so that its threads can share a scan."""
MANY = 4_096
"""Groups that are put in order to find a range of them: fewer are looked at."""
ORDERS = 4
"""Orders of its groups that a state has at once."""
WAITING = 1_024
"""Slots of groups that are no more: as many may wait in a small state."""


def can_reside(state: State) -> bool:
    """Whether all of a state's columns are of kinds that fold in place."""
    return all(is_key(c.type) for c in state.keys) and all(is_partial(c.type, a.fn) for c, a in state.partials)


class Resident:
    """The merged rows of one state, as of ``epoch``."""

    def __init__(self, state: State) -> None:
        self.epoch = -1
        self.schema = arrow_schema(state.schema)
        self._state = state
        self._types = {c.name: c.type for c in state.keys}
        self._begin()

    def _begin(self) -> None:
        self.slots = 0
        self._keys = [_Keys(c.type) for c in self._state.keys]
        self._lanes = sum(k.lanes for k in self._keys)
        self._groups = np.empty((0, self._lanes), np.int64)
        self._index = np.full(16, -1, np.int64)
        self._columns = _columns_of(self._state)
        self._others: dict[tuple[str, ...], KeyIndex] = {}
        self._ordered: dict[tuple[int, ...], Ordered] = {}
        self._asked: set[tuple[int, ...]] = set()
        self._waiting = np.zeros(0, np.bool_)
        self._waiting_slots = 0
        if not self._keys:
            self._number([], 1)  # the one group of a global aggregate is there before any row is

    @property
    def bytes(self) -> int:
        """Memory held, about: lanes, hash table, keys and columns."""
        keys = sum(k.bytes for k in self._keys)
        slots = self._groups.nbytes + self._index.nbytes + self._waiting.nbytes
        slots += sum(index.bytes for index in self._others.values())
        slots += sum(ordered.bytes for ordered in self._ordered.values())
        return int(slots + keys + sum(c.bytes for c in self._columns))

    def fold(self, rows: pa.Table, epoch: int) -> None:
        """Merge state rows in; afterwards this is the state as of ``epoch``."""
        if rows.num_rows:
            rows = rows.combine_chunks()
            arrays = [one_chunk(rows.column(i)) for i in range(rows.num_columns)]
            keys, partials = arrays[: len(self._keys)], arrays[len(self._keys) :]
            numbers, firsts = self._number(keys, rows.num_rows)
            for column in self._columns:
                column.grow(len(self._groups))
                if not column.fold(numbers, partials):
                    raise Unfoldable
            if len(firsts):
                new = [array.take(pa.array(firsts)) for array in keys]
                for key, array in zip(self._keys, new, strict=True):
                    key.append(array)
                slots = np.arange(self.slots - len(firsts), self.slots)
                for names in self._others:
                    self._enter(names, pa.table(new, names=[c.name for c in self._state.keys]), slots)
            if not self._state.monotone and self._keys:
                self._let_go(np.unique(numbers))
        self.epoch = epoch

    def table(self) -> pa.Table:
        """The merged rows, over this object's own memory: read them before the next fold."""
        arrays = [k.column() for k in self._keys]
        for column in self._columns:
            column.grow(len(self._groups))
            arrays += column.arrays(slice(0, self.slots))
        rows = pa.Table.from_arrays(self._in_order(arrays), schema=self.schema)
        if self._waiting_slots:
            rows = rows.filter(pa.array(~self._waiting[: self.slots]))
        return pa.Table.from_batches(rows.to_batches(max_chunksize=BATCH_ROWS), self.schema)

    def find(self, key: Sequence[pa.Array]) -> pa.Table:
        """A copy of the one row with this key, or no row; each part of the key is an array of one."""
        lanes = self._lanes_of(key, 1, learn=False)
        found = fold.find(lanes, self._index, self._groups)
        if found < 0 or (self._waiting_slots and self._waiting[found]):
            return self.schema.empty_table()
        arrays = [k.of(found) for k in self._keys]
        for column in self._columns:
            arrays += column.arrays(slice(found, found + 1))
        return pa.Table.from_arrays([pa.concat_arrays([a]) for a in self._in_order(arrays)], schema=self.schema)

    def find_each(self, names: Sequence[str], keys: pa.Table) -> pa.Table:
        """A copy of the rows whose columns of these names are one of some keys, and perhaps of some others.

        By all key columns they are found as any group is; by some of them through an index of its own, made when it is
        first asked for.
        """
        own = [c.name for c in self._state.keys]
        if list(names) == own:
            lanes = self._lanes_of([one_chunk(c) for c in keys.columns], keys.num_rows, learn=False)
            found = fold.find_each(lanes, self._index, self._groups)
            found = np.unique(found[found >= 0])
        else:
            hashes = np.unique(hashes_of([self._types[n] for n in names], keys))
            found = self._by(tuple(names)).find(hashes)[1]
        if self._waiting_slots:
            found = found[~self._waiting[found]]
        return self._taken(found)

    def find_span(self, span: KeyRange) -> pa.Table | None:
        """A copy of the rows of a range of keys, in their order; None if it is as well to look at all of them.

        To put the groups in order takes longer than to look at them: that is done when it is asked for again.
        """
        if self.slots < MANY:
            return None
        ordered = self._ordered.get(span.by)
        if ordered is None:
            if span.by not in self._asked:
                self._asked.add(span.by)
                return None
            if len(self._ordered) >= ORDERS:
                del self._ordered[next(iter(self._ordered))]
            ordered = self._ordered[span.by] = Ordered(span.by, [c.type for c in self._state.keys])
        ordered.catch_up(self.slots, self._take_keys)
        found = ordered.find(span, lambda i, slot: self._keys[i].of(slot), self._take_keys, self._there)
        return self._taken(found) if len(found) <= self.slots // 2 else None

    def _take_keys(self, slots: Array) -> list[pa.ChunkedArray]:
        return [key.take(slots) for key in self._keys]

    def _there(self, slots: Array) -> Array:
        """Which of these slots have something left."""
        return ~self._waiting[slots] if self._waiting_slots else np.ones(len(slots), np.bool_)

    def _taken(self, found: Array) -> pa.Table:
        """A copy of the rows of some slots."""
        arrays: list[Any] = [k.take(found) for k in self._keys]
        for column in self._columns:
            column.grow(len(self._groups))
            arrays += column.arrays(found)
        return pa.Table.from_arrays(self._in_order(arrays), schema=self.schema)

    def _by(self, names: tuple[str, ...]) -> KeyIndex:
        """The index of groups by some of their key columns."""
        if names not in self._others:
            self._others[names] = KeyIndex(self.slots)
            whole = pa.table([k.column() for k in self._keys], names=[c.name for c in self._state.keys])
            self._enter(names, whole, np.arange(self.slots))
        return self._others[names]

    def _enter(self, names: tuple[str, ...], keys: pa.Table, slots: Array) -> None:
        hashes = hashes_of([self._types[n] for n in names], keys.select(list(names)))
        self._others[names].enter(hashes, slots)

    def _let_go(self, touched: Array) -> None:
        """Note which of these groups have nothing left; begin anew with the others when those are the fewer."""
        if len(self._groups) > len(self._waiting):
            self._waiting = grown(self._waiting, len(self._groups))
        empty = np.logical_and.reduce([column.is_zero(touched) for column in self._columns])
        self._waiting_slots += int(empty.sum()) - int(self._waiting[touched].sum())
        self._waiting[touched] = empty
        if self._waiting_slots > max(WAITING, self.slots // 2):
            left = self.table()
            self._begin()
            self.fold(left, self.epoch)

    def _in_order(self, arrays: list[Any]) -> list[Any]:
        """The columns as the schema has them: a column object may hold several that are apart."""
        placed: list[Any] = [None] * len(arrays)
        places = [*range(len(self._keys)), *(len(self._keys) + p for c in self._columns for p in c.places)]
        for place, array in zip(places, arrays, strict=True):
            placed[place] = array
        return placed

    def _number(self, keys: list[pa.Array], rows: int) -> tuple[Array, Array]:
        lanes = self._lanes_of(keys, rows, learn=True)
        self._reserve(self.slots + rows)
        numbers, firsts = fold.number(lanes, self._index, self._groups, self.slots)
        self.slots += len(firsts)
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
            self._groups = grown(self._groups, rows)
        if 2 * rows > len(self._index):
            size = 1 << (2 * rows - 1).bit_length()
            self._index = np.full(size, -1, np.int64)
            fold.fill_index(self._groups, self.slots, self._index)


class _Keys:
    """One key column: Arrow chunks of the groups' keys, and how a value becomes lanes."""

    def __init__(self, type: Type) -> None:
        self._type = type
        self._chunks: list[pa.Array] = []
        self._codes: dict[Any, int] = {}
        self.lanes = lanes_of(type)
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

    def of(self, group: int) -> pa.Array:
        """One group's key, as an array of one."""
        for chunk in self._chunks:
            if group < len(chunk):
                return chunk.slice(group, 1)
            group -= len(chunk)
        raise AssertionError("every group has a key")

    def take(self, groups: Array) -> pa.ChunkedArray:
        """The keys of some groups."""
        if len(self._chunks) == 1:
            return pa.chunked_array([self._chunks[0].take(pa.array(groups))])
        ends = np.cumsum([len(chunk) for chunk in self._chunks])
        where = np.searchsorted(ends, groups, "right")
        found, order = [], []
        for i, chunk in enumerate(self._chunks):
            at = np.flatnonzero(where == i)
            if len(at):
                found.append(chunk.take(pa.array(groups[at] - (ends[i] - len(chunk)))))
                order.append(at)
        if not found:
            return pa.chunked_array([], self._type.arrow)
        back = np.argsort(np.concatenate(order))
        return pa.chunked_array([pa.concat_arrays(found).take(pa.array(back))])

    def write_lanes(self, array: pa.Array, out: Array, *, learn: bool) -> None:
        """Write the keys' lanes. ``learn`` gives a new text a number of its own, else it has one that no key has."""
        write_lanes(self._type, array, out, lambda texts: self._code(texts, learn))

    def _code(self, array: pa.Array, learn: bool) -> Array:
        """A number for each text, the same for equal texts."""
        encoded = array.dictionary_encode()
        codes = self._codes
        values = encoded.dictionary.to_pylist()
        known = [codes.setdefault(v, len(codes)) if learn else codes.get(v, -1) for v in values]
        places = plain(encoded.indices, np.int64)
        return np.array([*known, 0], np.int64)[places]


def _columns_of(state: State) -> list[PartialColumn]:
    place = {c.name: i for i, (c, _) in enumerate(state.partials)}
    columns: list[PartialColumn] = [
        MomentColumns(place[m.mean.name], place[m.m2.name], place[m.rest.name], place[m.count.name])
        for m in moments_of(state.partials)
    ]
    for i, (column, agg) in enumerate(state.partials):
        if agg.fn not in MOMENTS:
            columns.append(ValueColumn(i, column.type, agg.fn))
    return columns
