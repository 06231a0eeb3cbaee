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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.plan_sql import quote_native
from headrace.plan.pipelines import State
from headrace.store import Transaction

if TYPE_CHECKING:
    from headrace.view.continuous import ContinuousView

_DAY = 86_400_000_000
_LEAST = -(2**63)


@dataclass(frozen=True)
class Clock:
    """The oldest and newest time of a grouping's groups, in microseconds, since ``epoch`` altered them."""

    epoch: int
    oldest: int | None
    newest: int | None


@dataclass
class RetainingAdmission:
    """What one commit means for a view that retains: rows left out, and groups to drop once the others are in."""

    view: ContinuousView
    late: int = 0
    past: dict[str, int] = field(default_factory=dict)
    """The time up to which groups are past after the commit, by state, where some are."""

    def settle(self, tx: Transaction) -> None:
        """Drop what is past and count what was late, after the admitted rows were appended."""
        for name, past in self.past.items():
            state = self.view.plan.state(name)
            left = drop_past(tx, self.view, state, past)
            if name == state.grouping:
                self.view.clocks[name] = Clock(tx.epoch, *_times(state, left))
        if self.late:
            tx.count(self.view.relation.number, self.late)


def admit(tx: Transaction, view: ContinuousView, rows: dict[int, pa.Table]) -> RetainingAdmission | None:
    """Take late rows out of ``rows``, state rows by state, as far as they are the view's."""
    if view.plan.retain is None:
        return None
    admission = RetainingAdmission(view)
    for groups in view.plan.states:
        if groups.name == groups.grouping and _ref(view, groups) in rows:
            _admit(tx, view, groups, view.plan.retain, rows, admission)
    return admission


def _ref(view: ContinuousView, state: State) -> int:
    return view.by_name[state.name].ref


def _admit(
    tx: Transaction,
    view: ContinuousView,
    groups: State,
    retain: int,
    rows: dict[int, pa.Table],
    admission: RetainingAdmission,
) -> None:
    clock = _clock(tx, view, groups)
    states = [s for s in view.plan.states if s.grouping == groups.name]
    came = rows[_ref(view, groups)]
    if clock.newest is not None:
        for relation, state in [(_ref(view, s), s) for s in states if _ref(view, s) in rows]:
            rows[relation] = rows[relation].filter(_is_after(state, rows[relation], clock.newest - retain))
    kept = rows[_ref(view, groups)]
    admission.late += _counted(groups, came) - _counted(groups, kept)
    if not kept.num_rows:
        return
    low, high = _times(groups, kept)
    oldest = min((t for t in (clock.oldest, low) if t is not None), default=None)
    newest = max((t for t in (clock.newest, high) if t is not None), default=None)
    if oldest is not None and newest is not None and oldest <= newest - retain:
        admission.past |= {s.name: newest - retain for s in states}
    view.clocks[groups.name] = Clock(tx.epoch, oldest, newest)


def _clock(tx: Transaction, view: ContinuousView, groups: State) -> Clock:
    """The times of the stored groups: remembered if the commit that left them was the last to alter them."""
    altered = view.by_name[groups.name].home.last_change(tx, _ref(view, groups))
    known = view.clocks.get(groups.name)
    if known is not None and known.epoch == altered:
        return known
    key = quote_native(_key(groups))
    state = view.by_name[groups.name]
    source, tables = state.home.native(tx, state, "__appended")
    found = tx.query(f"SELECT unnest([min({key}), max({key})]) AS {key} FROM {source}", **tables)
    return Clock(altered, *_times(groups, found))


def drop_past(tx: Transaction, view: ContinuousView, state: State, past: int) -> pa.Table:
    """Rewrite a state without the groups whose time is ``past`` or before it; returns what stays, merged."""
    kept = view.by_name[state.name]
    rows = kept.home.merged(tx, kept)
    left = rows.filter(_is_after(state, rows, past))
    kept.home.rewrite(tx, kept.ref, left, altered=True)
    return left


def _key(state: State) -> str:
    assert state.time is not None
    return state.keys[state.time].name


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
