"""A batch grouped by compiled loops, where its keys and aggregates are plain enough.

A statement costs the native engine milliseconds before it touches a row. Here a batch's groups are
numbered once for all who group by the same keys, and each aggregate is one loop over the rows it takes.
Several groupings of one batch read the same columns: filters and expressions among them are
computed by one statement for all, and rows that pass a filter are picked out once.

What does not fit (a sum beyond its type) is left to the native engine's own text, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine import fold
from headrace.engine.columns import Unfoldable, ValueColumn, chosen, lanes_of, one_chunk, plain, present, write_lanes
from headrace.engine.fold import Array
from headrace.plan.moments import MOMENTS
from headrace.types import BIGINT, Type

ROWS = 65_536
"""Batches of more rows are left to the native engine, which has threads."""
VARIANCE_ROWS = 1_048_576
"""The same where there are variances: the native engine's text would read the rows twice, and join them."""


@dataclass(frozen=True)
class AskedAggregate:
    """One aggregate: over a column, or over rows; ``type`` is that of its partial column."""

    fn: str
    column: str | None
    type: Type


@dataclass(frozen=True)
class Member:
    """A state that takes the groups of those rows that pass (``passes`` names a boolean column)."""

    state: int
    passes: str | None
    aggs: tuple[AskedAggregate, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class Grouped:
    """One grouping for several states. ``over`` is the SQL of columns it has beside the batch's own, if any."""

    over: str | None
    keys: tuple[tuple[str, Type], ...]
    members: tuple[Member, ...]

    @property
    def rows(self) -> int:
        """Batches of so many rows are better done here."""
        return VARIANCE_ROWS if any(a.fn in MOMENTS for m in self.members for a in m.aggs) else ROWS


class RowsToGroup:
    """Rows to be grouped, perhaps in several ways."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._arrays: dict[str, pa.Array] = {}
        self._picked: dict[str, Array] = {}
        self._values: dict[tuple[str, str | None], pa.Array] = {}
        self._moments: dict[str, Array] = {}

    def states(self, grouped: Grouped) -> dict[int, pa.Table]:
        """The state rows of a grouping's members. Raises :class:`Unfoldable`."""
        numbers, firsts = self._numbered(grouped.keys)
        keys = [self._key(name, type).take(pa.array(firsts)) for name, type in grouped.keys]
        return {m.state: self._state(m, keys, numbers, len(firsts)) for m in grouped.members}

    def _state(self, member: Member, keys: Sequence[pa.Array], numbers: Array, groups: int) -> pa.Table:
        if member.passes is not None:
            numbers = numbers[self._passed(member.passes)]
        rows = np.bincount(numbers, minlength=groups)
        self._moments.clear()
        columns = [*keys, *(self._aggregated(agg, member.passes, numbers, rows) for agg in member.aggs)]
        table = pa.Table.from_arrays(columns, schema=member.schema)
        return table if member.passes is None or rows.all() else table.filter(pa.array(rows > 0))

    def _aggregated(self, agg: AskedAggregate, passes: str | None, numbers: Array, rows: Array) -> pa.Array:
        """An aggregate of each group, given how many rows it has."""
        given = None if agg.column is None else self._chosen(agg.column, passes)
        if agg.fn == "count":
            all_count = given is None or not given.null_count
            return pa.array(rows if all_count else np.bincount(numbers[present(given)], minlength=len(rows)))
        assert given is not None
        if agg.fn in MOMENTS:
            return self._moment(agg, given, numbers, len(rows))
        # Sums of bigints are kept in 38 digits; those of one batch seldom need more than a bigint's.
        narrow = agg.fn == "sum" and agg.type.is_decimal and pa.types.is_integer(given.type)
        values = ValueColumn(0, BIGINT if narrow else agg.type, agg.fn, len(rows))
        if not values.fold(numbers, [given]):
            raise Unfoldable
        found = values.arrays(slice(0, len(rows)))[0]
        return found.cast(agg.type.arrow) if narrow else found

    def _moment(self, agg: AskedAggregate, given: pa.Array, numbers: Array, groups: int) -> pa.Array:
        """A mean, its squared deviations or its rest: all three come of one loop."""
        assert agg.column is not None
        if agg.column not in self._moments:
            values = plain(given, np.dtype(given.type.to_pandas_dtype()))
            self._moments[agg.column] = fold.deviations(numbers, values, chosen(given), groups)
        counts, *found = self._moments[agg.column]
        return pa.array(found[("mean", "m2", "rest").index(agg.fn)], mask=counts == 0)

    def _numbered(self, keys: Sequence[tuple[str, Type]]) -> tuple[Array, Array]:
        """The number of each row's group, and a row of each group."""
        rows = self._rows.num_rows
        if not keys:
            return np.zeros(rows, np.int64), np.zeros(1, np.int64)
        lanes = np.empty((rows, sum(lanes_of(type) for _, type in keys)), np.int64)
        at = 0
        for name, type in keys:
            write_lanes(type, self._key(name, type), lanes[:, at : at + lanes_of(type)], _code)
            at += lanes_of(type)
        index = np.full(1 << max(2 * rows - 1, 1).bit_length(), -1, np.int64)
        numbered: tuple[Array, Array] = fold.number(lanes, index, np.empty_like(lanes), 0)
        return numbered

    def _key(self, name: str, type: Type) -> pa.Array:
        """A key column in the type its state has: text may come as views."""
        array = self._array(name)
        if array.type != type.arrow:
            array = self._arrays[name] = array.cast(type.arrow)
        return array

    def _array(self, name: str) -> pa.Array:
        if name not in self._arrays:
            self._arrays[name] = one_chunk(self._rows.column(name))
        return self._arrays[name]

    def _passed(self, name: str) -> Array:
        """The places of the rows that pass a filter."""
        if name not in self._picked:
            passed: Any = self._array(name).fill_null(False).to_numpy(zero_copy_only=False)
            self._picked[name] = np.flatnonzero(passed)
        return self._picked[name]

    def _chosen(self, name: str, passes: str | None) -> pa.Array:
        """A column's values in the rows that pass."""
        if passes is None:
            return self._array(name)
        if (name, passes) not in self._values:
            self._values[name, passes] = self._array(name).take(pa.array(self._passed(passes)))
        return self._values[name, passes]


def _code(texts: pa.Array) -> Array:
    """A number for each text, the same for equal ones in this array."""
    return plain(texts.dictionary_encode().indices, np.int64)
