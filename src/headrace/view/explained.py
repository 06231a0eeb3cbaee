"""EXPLAIN CREATE VIEW: the split of a continuous view, in words."""

from __future__ import annotations

from headrace.base.wording import span_text
from headrace.catalog import View
from headrace.engine.plan_sql import why_not_native
from headrace.keep.explaining import by_size, indented, place_said
from headrace.plan.nodes import kept_in, tables_in
from headrace.plan.pipelines import SplitPlan
from headrace.runtime import Runtime


def explained(runtime: Runtime, view: View, plan: SplitPlan) -> list[str]:
    """What is done at its creation, at each insert and at each query."""
    lines = [f"{view.called.capitalize()} {view.name}"]
    for static in plan.statics:
        tables_read = ", ".join(sorted(tables_in(static.plan)))
        lines += [
            f"Once, at creation: build side {static.name} of {tables_read}, by {place_said(runtime, static.plan)}"
        ]
        lines += indented(static.plan)
    for pipeline in plan.streams:
        reason = why_not_native(pipeline.plan, zone=runtime.settings.time_zone)
        where = by_size(runtime) if reason is None else f"Spark SQL: {reason}"
        each = "Each change of" if view.materialized else "Each insert into"
        what = f"{each} {pipeline.stream}" if pipeline.stream else "Once, at creation"
        lines += [f"{what}: state rows for {pipeline.state}, by {where}", *indented(pipeline.plan)]
    for state in plan.states:
        columns = ", ".join(f"{label} {f.type.sql}" for f, label in zip(state.schema, state.labels, strict=True))
        keys = len(state.keys)
        lines += [f"State {state.name} ({state.kind}): {columns}; key: {', '.join(state.labels[:keys]) or 'none'}"]
    if plan.retain is not None:
        lines += [f"Kept for {span_text(plan.retain)} of the groups' own time; rows for groups past that are late"]
    live = sorted(tables_in(plan.upper) | kept_in(plan.upper))
    also = f" (reads {', '.join(live)})" if live else ""
    lines += [f"Each query{also}: merge the states, then by {place_said(runtime, plan.upper)}", *indented(plan.upper)]
    return lines
