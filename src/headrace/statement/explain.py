"""EXPLAIN, SHOW and DESCRIBE: what there is, and what a statement would do, where and why."""

from __future__ import annotations

import pyarrow as pa

from headrace.base.wording import counted, span_text
from headrace.catalog import Catalog, Note, Relation
from headrace.engine.plan_sql import why_not_native
from headrace.keep.explaining import by_size, indented, place_said, unexplained
from headrace.keep.family import family_of
from headrace.keep.keeper import Keeper
from headrace.plan.key_reads import keys_asked
from headrace.plan.nodes import Node, kept_in, streams_in, tables_in
from headrace.plan.pipelines import SplitPlan
from headrace.plan.window import split_window, streams_out
from headrace.rings.home import terms_of
from headrace.runtime import Runtime
from headrace.sql import statements as s
from headrace.sql.changes import Delete, Merge, Truncate, Update
from headrace.statement.change import Changer
from headrace.statement.define import columns_of
from headrace.statement.load import target_of
from headrace.statement.read import QueryReader
from headrace.stream.ad_hoc import reads_of_streams
from headrace.table import keys
from headrace.types import ddl


def explain(reader: QueryReader, keeper: Keeper, statement: s.Statement) -> pa.Table:
    """The plan as text, one row a line; nothing is changed."""
    runtime = keeper.runtime
    catalog = runtime.catalog
    if isinstance(statement, s.Query):
        plan = reader.plan(statement)
        if streams_in(plan):
            lines = _explain_window(runtime, split_window(plan))
        else:
            lines = [f"Query, by {place_said(runtime, plan)}", *indented(plan), *_by_key(runtime, plan)]
    elif isinstance(statement, s.Create) and (family := family_of(statement)) is not None:
        if not statement.or_replace:
            catalog.require_free(statement.name, statement.position)
        lines = family.explained(keeper, statement)
    elif isinstance(statement, s.CreateTableAs):
        if not statement.or_replace:
            catalog.require_free(statement.name, statement.position)
        plan = reader.plan(s.Query(statement.query))
        columns = ddl(columns_of(plan, statement.name, statement.position))
        lines = [f"Table {statement.name} ({columns}), filled once, by {place_said(runtime, plan)}", *indented(plan)]
    elif isinstance(statement, s.Insert):
        plan = reader.plan(statement)
        lines = [
            f"Rows for {statement.name}, by {place_said(runtime, plan)}",
            *indented(plan),
            *_fed(catalog, statement.name),
        ]
    elif isinstance(statement, Update | Delete | Truncate | Merge):
        plans = Changer(runtime, reader).plans(statement)
        name = statement.name if isinstance(statement, Truncate) else statement.target.name
        lines = [] if plans else [f"All rows of {name} go, without being read"]
        for plan in plans:
            lines += [f"Rows of {name} and what becomes of them, by {place_said(runtime, plan)}", *indented(plan)]
            lines += _by_key(runtime, plan)
    elif isinstance(statement, s.Copy):
        target = target_of(catalog, statement.name, statement.position)
        lines = [f"Copy files into {target.kind} {target.name}, by {by_size(runtime)}"]
        lines += _fed(catalog, target.name)
    else:
        raise unexplained()
    return pa.table({"plan": lines})


def _by_key(runtime: Runtime, plan: Node) -> list[str]:
    """How rows of some keys are found, where the plan asks for such."""
    found = []
    for ref in keys_asked(plan):
        table = runtime.catalog.table_at(ref.number)
        if table is not None and table.files is None:
            with runtime.store.read() as snapshot:
                reason = keys.why_none(runtime, snapshot, table)
            found.append(f"  rows of {table.name} by " + (f"a scan: {reason}" if reason else "primary key"))
    return found


def _fed(catalog: Catalog, relation: str) -> list[str]:
    return [f"  feeds {v.name}" for v in catalog.dependents(relation) if v.is_kept]


def _explain_window(runtime: Runtime, plan: SplitPlan) -> list[str]:
    """A query over streams: what it does before, while and after rows come."""
    lines = []
    for stream, columns, oldest in reads_of_streams(runtime.catalog, plan):
        terms = terms_of(stream)
        start = "the oldest buffered row" if oldest else "the newest row"
        ends = f"ends after {span_text(round(terms.timeout * 1e6))} without a row"
        lines.append(f"Query over stream {stream.name}, from {start} on; {ends}")
        lines.append(f"  reads {', '.join(columns)} of a buffer of {counted(terms.capacity, 'row')}")
    for static in plan.statics:
        read = ", ".join(sorted(tables_in(static.plan) | kept_in(static.plan)))
        lines += [f"At its start: build side {static.name} of {read}, by {place_said(runtime, static.plan)}"]
        lines += indented(static.plan)
    kinds = {s.name: s.kind for s in plan.states}
    for pipeline in plan.streams:
        reason = why_not_native(pipeline.plan, zone=runtime.settings.time_zone)
        where = "native" if reason is None else f"Spark SQL: {reason}"
        what = f"As rows of {pipeline.stream} come, on the probe side" if pipeline.stream else "At its start"
        kept = "rows" if kinds[pipeline.state] == "rows" else "state rows"
        out = "the answer" if streams_out(plan) else pipeline.state
        lines += [f"{what}: {kept} for {out}, by {where}", *indented(pipeline.plan)]
    if not streams_out(plan):
        lines += [f"When the window ends: merge, then by {place_said(runtime, plan.upper)}", *indented(plan.upper)]
    return lines


def describe(keeper: Keeper, relation: Relation) -> pa.Table:
    """DESCRIBE: columns and types, then what else a reader of the relation should know."""
    rows = [(f.name, f.type.declared, "" if f.nullable else "NOT NULL") for f in relation.columns]
    kept: list[Note] = []
    if relation.is_kept:
        with keeper.runtime.store.read() as snapshot:
            kept = keeper.get(relation.name).notes(snapshot, lambda: keeper.rows(snapshot, relation.name))
    notes = [*relation.notes(kept), *keeper.runtime.catalog.renamed_in(relation)]
    names, types, extras = zip(*[*rows, *notes], strict=True)
    return pa.table({"col_name": list(names), "data_type": list(types), "comment": list(extras)})
