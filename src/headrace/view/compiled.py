"""A continuous view ready to run (000 §4.2.4).

*init* materialises the static build sides; *insert* runs the stream pipelines of
whatever stream the rows came by; *query* merges states and runs the upper
pipeline. All three are compiled here, once, from the view's split plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from headrace.catalog import Catalog, View
from headrace.engine.pipelines import Pipeline
from headrace.engine.plan_sql import NotNative, native_plan, quote_native
from headrace.engine.work import BATCH, PARTIALS, Static
from headrace.errors import NotYetSupported, SqlError, StoreError
from headrace.plan.nodes import Node, Project, Scan, streams_in, tables_in, views_in, walk_plan
from headrace.plan.pipelines import SplitPlan, State, StreamPipeline
from headrace.plan.rules import optimize
from headrace.plan.rules.drop_unlimited_sort import drop_root_sort
from headrace.plan.split import split
from headrace.sql.binder import Binder
from headrace.sql.spark_blocks import QueryAnalyzer
from headrace.sql.statements import CreateView, parse
from headrace.store import Transaction
from headrace.types import Field, Schema, arrow_schema


@dataclass(frozen=True, eq=False)
class InsertPipeline:
    """One stream pipeline: its plan for Spark SQL, and its native form or why it has none."""

    state: str
    """The state relation's name in the store."""
    plan: Node
    columns: tuple[str, ...]
    """The stream columns it reads."""
    builds: Mapping[str, Static]
    """The build sides it probes, by their names in the plan."""
    native: Pipeline | None
    reason: str | None


@dataclass(frozen=True)
class Clock:
    """The oldest and newest time of a grouping's groups, in microseconds, since ``epoch`` altered them."""

    epoch: int
    oldest: int | None
    newest: int | None


@dataclass(frozen=True, eq=False)
class ContinuousView:
    """A view's split plan with its pipelines compiled."""

    view: View
    plan: SplitPlan
    statics: Mapping[str, Static]
    """Build sides by their names in the plan; one file may serve several names, and several views."""
    zone: str
    clocks: dict[str, Clock] = field(default_factory=dict)
    """What the writer knows of the times of each grouping, for a view that retains."""

    @property
    def name(self) -> str:
        return self.view.name

    def relation(self, state: State | str) -> str:
        """The store's name for one of the view's states."""
        return f"state {self.view.name} {state if isinstance(state, str) else state.name}"

    def compile(self) -> None:
        """Compile all that inserts run now, so that an error comes before the view is committed."""
        _ = self.initial, self.pipelines

    @cached_property
    def pipelines(self) -> Mapping[str, tuple[InsertPipeline, ...]]:
        """What an insert runs, by stream."""
        found: dict[str, tuple[InsertPipeline, ...]] = {}
        for pipeline in self.plan.streams:
            if pipeline.stream is not None:
                key = pipeline.stream.lower()
                found[key] = (*found.get(key, ()), self._compile(pipeline))
        return found

    @cached_property
    def initial(self) -> tuple[InsertPipeline, ...]:
        """Pipelines that read no stream: static branches of a UNION ALL, run once at creation."""
        return tuple(self._compile(p) for p in self.plan.streams if p.stream is None)

    @cached_property
    def upper_tables(self) -> tuple[str, ...]:
        """Tables read at each query: their changes show in the next one."""
        return tuple(sorted(tables_in(self.plan.upper)))

    @cached_property
    def upper_views(self) -> tuple[str, ...]:
        """Continuous views read at each query, at the same epoch as this one's own states."""
        return tuple(sorted(views_in(self.plan.upper)))

    @cached_property
    def frozen_tables(self) -> tuple[str, ...]:
        """Tables joined below the first grouping: read once, when the view was made (000 §4.2.7)."""
        return tuple(sorted({t for s in self.plan.statics for t in tables_in(s.plan)}))

    def merge_sql(self, state: State, source: str) -> str:
        """Native SQL that merges a state's rows, read from ``source``, into one row a key."""
        return native_plan(state.merged(), lambda scan: source, zone=self.zone)

    def _compile(self, pipeline: StreamPipeline) -> InsertPipeline:
        state = self.plan.state(pipeline.state)
        name = self.relation(state)
        columns = _stream_columns(pipeline.plan)
        scans = [n for n in walk_plan(pipeline.plan) if isinstance(n, Scan)]
        builds = {scan.relation: self.statics[scan.relation] for scan in scans if scan.kind == "static"}

        def source(scan: Scan) -> str:
            if scan.kind == "static":
                return quote_native(builds[scan.relation].name)
            return BATCH if scan.kind == "stream" else quote_native(scan.relation)

        try:
            wide = native_plan(pipeline.plan, source, zone=self.zone)
        except NotNative as refusal:
            return InsertPipeline(name, pipeline.plan, columns, builds, None, refusal.reason)
        narrow = native_plan(pipeline.plan, source, zone=self.zone, narrow=True)
        native = Pipeline(
            name, wide, narrow if narrow != wide else None, self.merge_sql(state, PARTIALS), arrow_schema(state.schema)
        )
        return InsertPipeline(name, pipeline.plan, columns, builds, native, None)


def static_relation(view: str) -> str:
    """The store's name for a view's static build sides."""
    return f"static {view}"


def statics_of(files: Mapping[str, Path]) -> dict[str, Static]:
    """Build sides by their names in the split plan. A file's name tells its rows, so a worker loads it once for all."""
    return {name: Static(path.name, path) for name, path in files.items()}


def plan_view(statement: CreateView, catalog: Catalog, analyzer: QueryAnalyzer) -> tuple[Node, Schema]:
    """The bound and optimized plan of a view's query, and the view's columns."""
    bound = Binder(catalog, analyzer).query(statement.query)
    names = list(statement.columns) or [c.name for c in bound.output]
    if len(names) != len(bound.output):
        raise SqlError(
            "CREATE_VIEW_COLUMN_ARITY_MISMATCH",
            f"{statement.name} names {len(names)} columns, but its query has {len(bound.output)}",
            position=statement.position,
        )
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SqlError(
                "COLUMN_ALREADY_EXISTS",
                f"the view would have two columns named {name}",
                position=statement.position,
                hint="give one an alias",
            )
        seen.add(name.lower())
    for column in bound.output:
        if column.type.is_nested and "void" in column.type.sql:  # Spark itself does not hand such rows out
            raise NotYetSupported(
                f"a view column of type {column.type.sql} ({column.name})",
                position=statement.position,
                hint="cast the NULL inside it to a type",
            )
    named = Project(bound, tuple((c.fresh(n, c.type), c) for n, c in zip(names, bound.output, strict=True)))
    schema = tuple(Field(n, c.type) for n, c in zip(names, bound.output, strict=True))
    return optimize(drop_root_sort(named)), schema


def split_view(statement: CreateView, catalog: Catalog, analyzer: QueryAnalyzer) -> tuple[SplitPlan | None, Schema]:
    """The view's split plan if it reads a stream, else nothing to keep."""
    plan, schema = plan_view(statement, catalog, analyzer)
    if streams_in(plan):
        return split(plan, statement.retain), schema
    if statement.retain is not None:
        raise SqlError(
            "RETAIN_WITHOUT_STREAM",
            f"{statement.name} reads no stream, so it keeps no groups to retain",
            position=statement.position,
            hint="leave retain out, or filter by time",
        )
    return None, schema


def reads_of(statement: CreateView, catalog: Catalog) -> tuple[str, ...]:
    """The relations of the catalog a view's text names, as the catalog spells them."""
    ctes = {c.alias.lower() for c in statement.query.find_all(exp.CTE)}
    found = {t.name.lower() for t in statement.query.find_all(exp.Table)} - ctes
    shadowed = {t.name.lower() for t in statement.query.find_all(exp.Table) if t.name.lower() in ctes}
    names = found | {n for n in shadowed if catalog.find(n) is not None}
    return tuple(sorted(r.name for r in map(catalog.find, names) if r is not None))


def reopen(
    view: View, catalog: Catalog, analyzer: QueryAnalyzer, files: Mapping[str, Path], zone: str
) -> ContinuousView:
    """A stored continuous view, compiled again from its definition."""
    statement = parse(view.text)
    assert isinstance(statement, CreateView)
    plan, _ = split_view(statement, catalog, analyzer)
    assert plan is not None
    return ContinuousView(view, plan, statics_of(files), zone)


def bring_up_to_date(tx: Transaction, views: Iterable[ContinuousView]) -> None:
    """Keep the states an earlier Headrace left in the types this one gives them.

    Earlier ones kept no ``rest`` of a mean, whose columns come last.
    """
    stale: dict[str, pa.Schema] = {}
    for view in views:
        for state in view.plan.states:
            relation, wanted = view.relation(state), arrow_schema(state.schema)
            stored = tx.schemas.get(relation.lower())
            since = {c.name for c, a in state.partials if a.fn == "rest"}
            if stored is None or stored.names not in (wanted.names, [n for n in wanted.names if n not in since]):
                raise StoreError(
                    "STATE_OUTDATED",
                    f"the state of view {view.name} has other columns than this Headrace keeps for it",
                    hint="open the database with the Headrace that wrote it, and make the view anew with this one",
                )
            if stored != wanted:
                stale[relation] = wanted
    for relation, wanted in stale.items():
        tx.reshape(relation, wanted)
    if not stale:
        tx.unchanged()


def _stream_columns(plan: Node) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for node in walk_plan(plan):
        if isinstance(node, Scan) and node.kind == "stream":
            names.update(dict.fromkeys(node.fields))
    return tuple(names)
