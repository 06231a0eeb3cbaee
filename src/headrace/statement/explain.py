"""EXPLAIN, SHOW and DESCRIBE: what there is, and what a statement would do, where and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.base.wording import counted
from headrace.catalog import Note, Relation
from headrace.engine.places import Place
from headrace.engine.plan_sql import why_not_native
from headrace.errors import NotYetSupported
from headrace.plan.nodes import Node, kept_in, streams_in, tables_in
from headrace.plan.pipelines import SplitPlan
from headrace.plan.render import render
from headrace.plan.window import split_window, streams_out
from headrace.rings.home import terms_of
from headrace.sql import statements as s
from headrace.sql.options import span_text
from headrace.statement.define import columns_of
from headrace.statement.load import target_of
from headrace.stream.ad_hoc import reads_of_streams
from headrace.table import query
from headrace.types import ddl

if TYPE_CHECKING:
    from headrace.database import Database

_BATCHES = "native; in Spark tasks when the input is {size} or more"


def explain(db: Database, statement: s.Statement) -> pa.Table:
    """The plan as text, one row a line; nothing is changed."""
    if isinstance(statement, s.Query):
        plan = db.plan(statement)
        if streams_in(plan):
            lines = _explain_window(db, split_window(plan))
        else:
            lines = [f"Query, by {_place(db, plan)}", *_indented(plan)]
    elif isinstance(statement, s.CreateView):
        db.catalog.require_free(statement.name, statement.position)
        lines = _explain_view(db, statement)
    elif isinstance(statement, s.CreateTableAs):
        db.catalog.require_free(statement.name, statement.position)
        plan = db.plan(s.Query(statement.query))
        columns = ddl(columns_of(plan, statement.name, statement.position))
        lines = [f"Table {statement.name} ({columns}), filled once, by {_place(db, plan)}", *_indented(plan)]
    elif isinstance(statement, s.Insert):
        plan = db.plan(statement)
        lines = [f"Rows for {statement.name}, by {_place(db, plan)}", *_indented(plan), *_fed(db, statement.name)]
    elif isinstance(statement, s.Copy):
        target = target_of(db.catalog, statement.name, statement.position)
        size = db.runtime.settings.task_bytes
        lines = [f"Copy files into {target.kind} {target.name}, by {_BATCHES.format(size=_bytes(size))}"]
        lines += _fed(db, target.name)
    else:
        known = "a query, CREATE VIEW, CREATE TABLE … AS, INSERT or COPY"
        raise NotYetSupported("EXPLAIN of this statement", hint=f"EXPLAIN {known}")
    return pa.table({"plan": lines})


def _fed(db: Database, relation: str) -> list[str]:
    return [f"  feeds {v.name}" for v in db.catalog.dependents(relation) if v.is_kept]


def _explain_view(db: Database, statement: s.CreateView) -> list[str]:
    view, plan = db.plan_view(statement)
    if plan is None:
        return [f"View {view.name}: an ordinary view, computed when it is queried"]
    lines = [f"Continuous view {view.name}"]
    for static in plan.statics:
        tables_read = ", ".join(sorted(tables_in(static.plan)))
        lines += [f"Once, at creation: build side {static.name} of {tables_read}, by {_place(db, static.plan)}"]
        lines += _indented(static.plan)
    for pipeline in plan.streams:
        reason = why_not_native(pipeline.plan, zone=db.runtime.settings.time_zone)
        where = (
            _BATCHES.format(size=_bytes(db.runtime.settings.task_bytes)) if reason is None else f"Spark SQL: {reason}"
        )
        what = f"Each insert into {pipeline.stream}" if pipeline.stream else "Once, at creation"
        lines += [f"{what}: state rows for {pipeline.state}, by {where}", *_indented(pipeline.plan)]
    for state in plan.states:
        columns = ", ".join(f"{label} {f.type.sql}" for f, label in zip(state.schema, state.labels, strict=True))
        keys = len(state.keys)
        lines += [f"State {state.name} ({state.kind}): {columns}; key: {', '.join(state.labels[:keys]) or 'none'}"]
    if plan.retain is not None:
        lines += [f"Kept for {span_text(plan.retain)} of the groups' own time; rows for groups past that are late"]
    live = sorted(tables_in(plan.upper) | kept_in(plan.upper))
    also = f" (reads {', '.join(live)})" if live else ""
    lines += [f"Each query{also}: merge the states, then by {_place(db, plan.upper)}", *_indented(plan.upper)]
    return lines


def _explain_window(db: Database, plan: SplitPlan) -> list[str]:
    """A query over streams: what it does before, while and after rows come."""
    lines = []
    for stream, columns, oldest in reads_of_streams(db.runtime.catalog, plan):
        terms = terms_of(stream)
        start = "the oldest buffered row" if oldest else "the newest row"
        ends = f"ends after {span_text(round(terms.timeout * 1e6))} without a row"
        lines.append(f"Query over stream {stream.name}, from {start} on; {ends}")
        lines.append(f"  reads {', '.join(columns)} of a buffer of {counted(terms.capacity, 'row')}")
    for static in plan.statics:
        read = ", ".join(sorted(tables_in(static.plan) | kept_in(static.plan)))
        lines += [f"At its start: build side {static.name} of {read}, by {_place(db, static.plan)}"]
        lines += _indented(static.plan)
    kinds = {s.name: s.kind for s in plan.states}
    for pipeline in plan.streams:
        reason = why_not_native(pipeline.plan, zone=db.runtime.settings.time_zone)
        where = "native" if reason is None else f"Spark SQL: {reason}"
        what = f"As rows of {pipeline.stream} come, on the probe side" if pipeline.stream else "At its start"
        kept = "rows" if kinds[pipeline.state] == "rows" else "state rows"
        out = "the answer" if streams_out(plan) else pipeline.state
        lines += [f"{what}: {kept} for {out}, by {where}", *_indented(pipeline.plan)]
    if not streams_out(plan):
        lines += [f"When the window ends: merge, then by {_place(db, plan.upper)}", *_indented(plan.upper)]
    return lines


def _place(db: Database, plan: Node) -> str:
    choice = query.place_of(db.runtime, plan)
    return choice.place.value if choice.place is Place.NATIVE else f"{choice.place.value}: {choice.reason}"


def _indented(plan: Node) -> list[str]:
    return [f"  {line}" for line in render(plan).splitlines()]


def _bytes(n: int) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            break
        n //= 1024
    return f"{n} {unit}"


def describe(db: Database, relation: Relation) -> pa.Table:
    """DESCRIBE: columns and types, then what else a reader of the relation should know."""
    rows = [(f.name, f.type.declared, "" if f.nullable else "NOT NULL") for f in relation.columns]
    kept: list[Note] = []
    if relation.is_kept:
        with db.runtime.store.read() as snapshot:
            kept = db.keeper.get(relation.name).notes(snapshot, lambda: db.keeper.rows(snapshot, relation.name))
    notes = relation.notes(kept)
    names, types, extras = zip(*[*rows, *notes], strict=True)
    return pa.table({"col_name": list(names), "data_type": list(types), "comment": list(extras)})
