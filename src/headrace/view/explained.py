"""EXPLAIN CREATE VIEW: the split of a continuous view, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.base.wording import counted, span_text
from headrace.catalog import View
from headrace.catalog.refreshing import AUTO, SN
from headrace.engine.places import Place
from headrace.engine.plan_sql import why_not_native
from headrace.keep.costs import Costs
from headrace.keep.explaining import by_size, indented, place_said
from headrace.keep.maintenance import LookedUp, compiled, tables_of
from headrace.plan.layers import LayeredPlan
from headrace.plan.nodes import Leaf, Node, kept_in, tables_in
from headrace.plan.pipelines import SplitPlan, State
from headrace.plan.refs import TableRef
from headrace.plan.rounds import rounds
from headrace.runtime import Runtime
from headrace.table import keys as indexes
from headrace.table.query import place_of

SENT = 65_536
"""Rows of a table that Spark rather sends everywhere, about: it goes by 10 MB."""


def explained(
    runtime: Runtime, view: View, plan: SplitPlan | LayeredPlan, inherited: Collection[str] = ()
) -> list[str]:
    """What is done at its creation, at each insert or change, and at each query; some states are ``inherited``."""
    lines = [f"{view.called.capitalize()} {view.name}"]
    if isinstance(plan, LayeredPlan):
        how = [*_refreshing(runtime, view, plan), *_following(runtime, plan)]
        return [*lines, *how, *_states(plan.states, inherited), *_queries(runtime, plan.upper)]
    for static in plan.statics:
        tables_read = ", ".join(sorted(tables_in(static.plan)))
        lines += [
            f"Once, at creation: build side {static.name} of {tables_read}, by {place_said(runtime, static.plan)}"
        ]
        lines += indented(static.plan)
    for side in plan.sides:
        read, where = ", ".join(sorted(tables_in(side.plan))), place_said(runtime, side.plan)
        lines += [
            f"Before an insert, when {read} has changed: build side {side.name}, by {where}",
            *indented(side.plan),
        ]
    for pipeline in plan.streams:
        reason = why_not_native(pipeline.plan, zone=runtime.settings.time_zone)
        where = by_size(runtime) if reason is None else f"Spark SQL: {reason}"
        what = f"Each insert into {pipeline.stream}" if pipeline.stream else "Once, at creation"
        lines += [f"{what}: state rows for {pipeline.state}, by {where}", *indented(pipeline.plan)]
    lines += _states(plan.states)
    if plan.retain is not None:
        lines += [f"Kept for {span_text(plan.retain)} of the groups' own time; rows for groups past that are late"]
    return [*lines, *_queries(runtime, plan.upper)]


def _refreshing(runtime: Runtime, view: View, plan: LayeredPlan) -> list[str]:
    """How it is kept up to date, and what that may take before anything was learnt of it."""
    found = [f"Refreshed by {view.refreshing}"]
    if view.refreshing.policy == AUTO and view.refreshing.strategy != SN and view.keep_changes is None:
        with runtime.store.read() as snapshot:
            tables = [runtime.catalog.table_at(ref.number) for ref in tables_of(plan)]
            rows = sum(indexes.about(runtime, snapshot, table) for table in tables if table is not None)
        guess = Costs()
        each, whole = guess.following(1_000), guess.anew(rows)
        found.append(
            f"  1,000 changed rows about {1e3 * each:,.0f} ms, anew over {counted(rows, 'row')} about "
            f"{1e3 * whole:,.0f} ms: anew from {guess.even(rows):,} changed rows on, until it is known better"
        )
    return found


def _states(states: Sequence[State], inherited: Collection[str] = ()) -> list[str]:
    lines = []
    for state in states:
        columns = ", ".join(f"{label} {f.type.sql}" for f, label in zip(state.schema, state.labels, strict=True))
        keys = len(state.keys)
        lines += [f"State {state.name} ({state.kind}): {columns}; key: {', '.join(state.labels[:keys]) or 'none'}"]
        if state.name in inherited:
            lines.append("  taken over from the view that is replaced")
    return lines


def _queries(runtime: Runtime, upper: Node) -> list[str]:
    live = sorted(tables_in(upper) | kept_in(upper))
    also = f" (reads {', '.join(live)})" if live else ""
    return [f"Each query{also}: merge the states, then by {place_said(runtime, upper)}", *indented(upper)]


def _following(runtime: Runtime, plan: LayeredPlan) -> list[str]:
    """What each table's changes do to states."""
    lines = []
    with runtime.store.read() as snapshot:
        for ref in sorted(tables_of(plan), key=lambda ref: ref.name):
            steps = compiled(runtime, snapshot, plan, [ref])
            reasons = list(dict.fromkeys(reason for step in steps for reason in step.reasons))
            lines.append(f"Each change of {ref.name}: {'not incremental' if reasons else 'incremental'}")
            lines += [f"  {reason}" for reason in reasons]
            for step in steps:
                lines.append(f"  state rows for {step.state}, by {place_said(runtime, step.rest)}")
                lines += [f"    looks up {one.leaf.relation} by {', '.join(one.fields)}" for one in step.lookups]
                lines += [f"    reads all of {name}" for name in _scanned([step])]
    lines += [f"Each query: {reason}" for reason in plan.order]
    lines.append("Once, at creation: the same states of all rows")
    for one in plan.inputs:
        lines += [f"  {', '.join(p.state for p in one.pipelines)} of", *(f"  {line}" for line in indented(one.rows))]
    for first in plan.first_steps():
        if place_of(runtime, first.rows).place is Place.SPARK:
            lines += [f"  {first.state}, by {place_said(runtime, first.rows)}", *_rounds(runtime, first.rows)]
    return lines


def _rounds(runtime: Runtime, plan: Node) -> list[str]:
    """How Spark distributes rows, as a rule: which side of a join is small it finds out when it runs."""
    with runtime.store.read() as snapshot:

        def is_small(leaf: Leaf) -> bool:
            table = runtime.catalog.table_at(leaf.number) if isinstance(leaf.ref, TableRef) else None
            return table is not None and indexes.about(runtime, snapshot, table) <= SENT

        replicated, found = rounds(plan, is_small)
    lines = [f"    sent everywhere: {', '.join(dict.fromkeys(replicated))}"] if replicated else []
    for number, one in enumerate(found, 1):
        lines.append(f"    round {number}, {one}")
        if one.replicated:
            lines.append(f"      sent everywhere: {', '.join(dict.fromkeys(one.replicated))}")
    return lines


def _scanned(steps: Sequence[LookedUp]) -> list[str]:
    return list(dict.fromkeys(leaf.relation for step in steps for leaf in step.scanned))
