"""Retention: a view that says ``retain`` keeps the groups of its last stretch of event time.

A grouping's *clock* is the newest time among its groups; no other clock is asked, so the answer
depends on the rows alone and on how statements cut them. A group is *past* when its time lies
``retain`` or more behind the clock. For windows it is the same whether starts or ends are compared;
a group by a date or timestamp has that as its time, and one without (NULL) is never past.

A commit does three things, in this order:

1. rows for groups that were past *before* it are late: they are not added, only counted;
2. the others are added, which may move the clock;
3. groups that are past *now* are dropped.

So after every commit the state holds what is not past, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.plan_sql import quote_native
from headrace.plan.split import State
from headrace.store import Transaction
from headrace.types import arrow_schema
from headrace.view.compiled import ContinuousView

_DAY = 86_400_000_000
_LEAST = -(2**63)


def late_count(view: str) -> str:
    """The name a view's late rows are counted under."""
    return f"late {view}"


def add(tx: Transaction, view: ContinuousView, rows: Mapping[str, Sequence[pa.Table]]) -> int:
    """Add state rows, by the state's name, to a view that retains; returns how many rows were late."""
    late = 0
    for grouping in dict.fromkeys(view.plan.state(name).grouping for name in rows):
        late += _add(tx, view, view.plan.state(grouping), rows)
    if late:
        tx.count(late_count(view.name), late)
    return late


def _add(tx: Transaction, view: ContinuousView, groups: State, rows: Mapping[str, Sequence[pa.Table]]) -> int:
    assert view.plan.retain is not None
    late = 0
    states = [s for s in view.plan.states if s.grouping == groups.name]
    oldest, newest = _stored_times(tx, view, groups)
    past = None if newest is None else newest - view.plan.retain
    for state in states:
        for table in rows.get(state.name, ()):
            kept = table if past is None else table.filter(_is_after(state, table, past))
            tx.append(view.relation(state), kept)
            if state is groups:
                late += _counted(groups, table) - _counted(groups, kept)
                low, high = _times(state, kept)
                oldest = min((t for t in (oldest, low) if t is not None), default=None)
                newest = max((t for t in (newest, high) if t is not None), default=None)
    if oldest is not None and newest is not None and oldest <= newest - view.plan.retain:
        for state in states:
            drop_past(tx, view, state, newest - view.plan.retain)
    return late


def drop_past(tx: Transaction, view: ContinuousView, state: State, past: int) -> None:
    """Rewrite a state without the groups whose time is ``past`` or before it; what stays is merged on the way."""
    relation = view.relation(state)
    rows = tx.query(view.merge_sql(state, tx.table(relation))).cast(arrow_schema(state.schema))
    tx.replace(relation, rows.filter(_is_after(state, rows, past)), altered=True)


def _key(state: State) -> str:
    assert state.time is not None
    return state.keys[state.time].name


def _stored_times(tx: Transaction, view: ContinuousView, state: State) -> tuple[int | None, int | None]:
    """The oldest and newest time of a stored state, in microseconds."""
    key = quote_native(_key(state))
    text = f"SELECT unnest([min({key}), max({key})]) AS {key} FROM {tx.table(view.relation(state))}"
    return _times(state, tx.query(text))


def _times(state: State, rows: pa.Table) -> tuple[int | None, int | None]:
    ticks, size = _ticks(rows.column(_key(state)))
    found = pc.min_max(ticks).as_py()
    low, high = found["min"], found["max"]
    return (None, None) if low is None else (low * size, high * size)


def _is_after(state: State, rows: pa.Table, past: int) -> pa.ChunkedArray:
    ticks, size = _ticks(rows.column(_key(state)))
    after = pc.greater(ticks, pa.scalar(max(past // size, _LEAST), pa.int64()))
    return pc.fill_null(after, True)


def _ticks(times: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """Times as whole numbers, and how many microseconds one of them is."""
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _DAY
    return times.cast(pa.int64()), 1


def _counted(groups: State, rows: pa.Table) -> int:
    column = next(c for c, agg in groups.partials if agg.fn == "count" and not agg.args and agg.filter is None)
    return int(pc.sum(rows.column(column.name)).as_py() or 0)
