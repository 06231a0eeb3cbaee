"""EXPLAIN, SHOW and DESCRIBE: what there is, and what a statement would do, where and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace import query, tables
from headrace.ad_hoc import reads_of_streams
from headrace.catalog import Relation, Sample, Stream, Table, View, kind_of
from headrace.definition import columns_of
from headrace.engine.places import Place
from headrace.engine.plan_sql import why_not_native
from headrace.errors import NotYetSupported
from headrace.loading import target_of
from headrace.plan.nodes import Node, streams_in, tables_in, views_in
from headrace.plan.pipelines import SplitPlan
from headrace.plan.render import render
from headrace.plan.window import split_window, streams_out
from headrace.sql import statements as s
from headrace.sql.options import span_text
from headrace.stream.ring.home import terms_of
from headrace.types import ddl
from headrace.view.compiled import static_relation
from headrace.view.retention import late_count
from headrace.wording import counted

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
        lines = [f"Copy files into {kind_of(target)} {target.name}, by {_BATCHES.format(size=_bytes(size))}"]
        lines += _fed(db, target.name)
    else:
        known = "a query, CREATE VIEW, CREATE TABLE … AS, INSERT or COPY"
        raise NotYetSupported("EXPLAIN of this statement", hint=f"EXPLAIN {known}")
    return pa.table({"plan": lines})


def _fed(db: Database, relation: str) -> list[str]:
    return [f"  feeds {v.name}" for v in db.catalog.dependents(relation) if v.continuous]


def _explain_view(db: Database, statement: s.CreateView) -> list[str]:
    plan, view = db.plan_view(statement)
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
    live = sorted(tables_in(plan.upper) | views_in(plan.upper))
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
        read = ", ".join(sorted(tables_in(static.plan) | views_in(static.plan)))
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


def show(db: Database, what: str) -> pa.Table:
    """SHOW STREAMS, TABLES, VIEWS or SAMPLES."""
    if what == "samples":
        return db.sql("SELECT name, of, size, grouped_by, rows, rows_seen FROM headrace.samples ORDER BY name").arrow()
    kind = {"streams": Stream, "tables": Table, "views": View}[what]
    found = db.catalog.of_kind(kind)
    columns: dict[str, pa.Array] = {"name": pa.array([r.name for r in found], pa.string())}
    with db.runtime.store.read() as snapshot:
        if kind is Stream:
            readers = [", ".join(v.name for v in db.catalog.dependents(r.name)) for r in found]
            columns["columns"] = pa.array([len(r.columns) for r in found], pa.int32())
            columns["read_by"] = pa.array(readers, pa.string())
            rings = [db.runtime.rings.find(r) for r in found if isinstance(r, Stream)]
            used = [ring.usage() if ring is not None else None for ring in rings]
            lags = [max((lag for _, lag in u.readers), default=0) if u else None for u in used]
            columns["capacity"] = pa.array([terms_of(r).capacity for r in found if isinstance(r, Stream)], pa.int64())
            columns["head"] = pa.array([u.head if u else None for u in used], pa.int64())
            columns["readers"] = pa.array([len(u.readers) if u else 0 for u in used], pa.int32())
            columns["lag"] = pa.array(lags, pa.int64())
            columns["blocked_seconds"] = pa.array([u.blocked_seconds if u else None for u in used], pa.float64())
            columns["overruns"] = pa.array([u.overruns if u else None for u in used], pa.int64())
            columns["lost_rows"] = pa.array([u.lost if u else None for u in used], pa.int64())
            columns["text_bytes"] = pa.array([u.text_bytes if u else None for u in used], pa.int64())
        elif kind is Table:
            counts: list[int | None] = []
            for table in found:
                if isinstance(table, Table) and table.files is not None:
                    counts.append(None)  # to know it, the files would have to be read
                    continue
                segments = snapshot.manifest(tables.tail_of(table.name))
                counts.append(snapshot.rows(tables.tail_of(table.name)) + sum(s.rows for s in segments))
            columns["rows"] = pa.array(counts, pa.int64())
            columns["primary_key"] = pa.array(
                [", ".join(t.primary_key) for t in found if isinstance(t, Table)], pa.string()
            )
        else:
            views = [v for v in found if isinstance(v, View)]
            columns["kind"] = pa.array(["continuous" if v.continuous else "ordinary" for v in views], pa.string())
            columns["reads"] = pa.array([", ".join(v.reads) for v in views], pa.string())
            columns["state_rows"] = pa.array([_state_rows(db, snapshot, v) for v in views], pa.int64())
    return pa.table(columns)


def _state_rows(db: Database, snapshot: object, view: View) -> int | None:
    from headrace.store import Snapshot

    assert isinstance(snapshot, Snapshot)
    if not view.continuous:
        return None
    compiled = db.continuous(view.name)
    return sum(snapshot.rows(compiled.relation(state)) for state in compiled.plan.states)


def describe(db: Database, relation: Relation) -> pa.Table:
    """DESCRIBE: columns and types, then what else a reader of the relation should know."""
    rows = [(f.name, f.type.declared, "" if f.nullable else "NOT NULL") for f in relation.columns]
    notes: list[tuple[str, str, str]] = [("# kind", kind_of(relation), "")]
    if isinstance(relation, Table) and relation.primary_key:
        notes.append(("# primary key", ", ".join(relation.primary_key), ""))
    if isinstance(relation, Table) and relation.files is not None:
        options = ", ".join(f"{name} {value!r}" for name, value in relation.files.options)
        how = f"{relation.files.format}{' with ' if options else ''}{options}, read at each query"
        notes.append(("# files", relation.files.location, how))
    if isinstance(relation, View):
        notes[0] = ("# kind", "continuous view" if relation.continuous else "view", "")
        notes.append(("# reads", ", ".join(relation.reads), ""))
        if relation.continuous:
            notes += _view_notes(db, relation)
        notes.append(("# text", relation.text.strip(), ""))
    if isinstance(relation, Sample):
        notes += _sample_notes(db, relation)
    names, types, extras = zip(*[*rows, *notes], strict=True)
    return pa.table({"col_name": list(names), "data_type": list(types), "comment": list(extras)})


def _sample_notes(db: Database, sample: Sample) -> list[tuple[str, str, str]]:
    every = db.sql("SELECT * FROM headrace.samples").arrow().to_pylist()
    row = next(row for row in every if row["name"] == sample.name)
    each = f"for each {row['grouped_by']}, of {counted(row['groups'], 'group')}" if sample.keys else ""
    seed = "" if sample.seed is None else f"seed {sample.seed}"
    return [
        ("# reads", sample.of, ""),
        ("# size", counted(sample.size, "row"), each or seed),
        ("# rows", f"{row['rows']:,}", f"of {row['rows_seen']:,} seen"),
        ("# memory", f"{row['bytes']:,} bytes", ""),
        ("# text", sample.text, ""),
    ]


def _view_notes(db: Database, view: View) -> list[tuple[str, str, str]]:
    compiled = db.continuous(view.name)
    notes = []
    if compiled.frozen_tables:
        with db.runtime.store.read() as snapshot:
            since = snapshot.created(static_relation(view.name))
        again = f"as they were at epoch {since}; REFRESH VIEW {view.name} RESTART reads them anew and counts from then"
        notes.append(("# read once", ", ".join(compiled.frozen_tables), again))
    if compiled.upper_tables:
        notes.append(("# read at each query", ", ".join(compiled.upper_tables), "changes show in the next query"))
    if compiled.upper_views:
        notes.append(("# read at each query", ", ".join(compiled.upper_views), "at the same commit"))
    plan: SplitPlan = compiled.plan
    if plan.retain is not None:
        with db.runtime.store.read() as snapshot:
            late = snapshot.counts().get(late_count(view.name).lower(), 0)
        times = dict.fromkeys(s.labels[s.time] for s in plan.states if s.time is not None)
        note = f"by {', '.join(times)}; {counted(late, 'row')} came too late"
        notes.append(("# retain", span_text(plan.retain), note))
    for state in plan.states:
        notes.append(
            (
                f"# state {state.name}",
                ", ".join(state.labels),
                f"{state.kind}, {counted(len(state.keys), 'key column')}",
            )
        )
    return notes
