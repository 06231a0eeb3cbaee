"""How a continuous view is made of CREATE VIEW, begun, and reopened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from headrace.base.parquet_files import write_parquet
from headrace.base.wording import counted
from headrace.catalog import Catalog, Relation, View
from headrace.catalog.refreshing import Refreshing
from headrace.catalog.view import ARRIVAL, FROZEN
from headrace.engine.analyzer import SparkAnalyzer
from headrace.errors import NotYetSupported, SqlError, StoreError, ViewRefused
from headrace.keep.family import Family, family
from headrace.keep.founding import Founding
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.keep.standing import STANDING
from headrace.plan.layers import LayeredPlan
from headrace.plan.nodes import Node, Project, leaves, streams_in
from headrace.plan.pipelines import SplitPlan
from headrace.plan.refs import RelationRef
from headrace.plan.rules import optimize
from headrace.plan.rules.drop_unlimited_sort import drop_root_sort
from headrace.plan.shared import same_states
from headrace.plan.split import split
from headrace.runtime import Runtime
from headrace.sql.binder import Binder
from headrace.sql.grammar import Opaque
from headrace.sql.nondeterminism import refuse_nondeterministic
from headrace.sql.spark_blocks import QueryAnalyzer
from headrace.sql.statements import CreateView, parse
from headrace.store import Snapshot, Transaction, writing
from headrace.table import history, query
from headrace.types import Field, Schema
from headrace.view.compiled import statics_of
from headrace.view.continuous import STATICS, ContinuousView
from headrace.view.explained import explained
from headrace.view.materialized import MaterializedView, followed, require_policy, unfolded


@family
class Views(Family):
    """Views; those that read a stream are kept."""

    relation = View
    statement = CreateView

    def defined(self, keeper: Keeper, statement: CreateView, analyzer: SparkAnalyzer) -> tuple[View, Cut | None]:
        catalog = keeper.runtime.catalog
        reads = reads_of(statement, catalog)
        if statement.materialized or any(catalog.get(name).is_stream for name in reads):
            refuse_nondeterministic(statement.query)  # before Spark is started to give such a function its type
            _refuse_nondeterministic_below(statement, reads, catalog)
        tables = statement.tables or (FROZEN if statement.materialized else ARRIVAL)
        plan, schema = split_view(statement, catalog, analyzer, tables)
        if plan is not None:
            refuse_nondeterministic(statement.query)
            _refuse_nondeterministic_below(statement, reads, catalog)
        reads = reads_of(statement, catalog)
        types = dict(analyzer.answers)
        kept = plan is not None
        if not kept:
            tables = FROZEN
        keeps = statement.keep_changes
        refreshing = statement.refreshing.over(Refreshing(), is_new=True)
        view = View(
            statement.name,
            schema,
            statement.text,
            kept,
            reads,
            types,
            statement.materialized,
            tables,
            refreshing,
            keep_changes=keeps,
        )
        if keeps is not None:
            history.check_columns(schema, view.name, statement.position)
        if isinstance(plan, LayeredPlan):
            require_policy(keeper.runtime, view, plan, statement.refreshing.position)
        return view, plan

    def holds(self, plan: Cut) -> Sequence[str]:
        statics = isinstance(plan, SplitPlan) and plan.statics
        stands = isinstance(plan, LayeredPlan)
        return [
            *(state.name for state in plan.states),
            *([STATICS] if statics else []),
            *([STANDING] if stands else []),
        ]

    def compiled(self, keeper: Keeper, relation: Relation, plan: Cut) -> ContinuousView:
        return self._compiled(keeper, relation, plan, {})

    def _compiled(self, keeper: Keeper, view: Relation, plan: Cut, files: Mapping[str, Path]) -> ContinuousView:
        assert isinstance(view, View)
        if isinstance(plan, LayeredPlan):
            return MaterializedView(view, plan, keeper.runtime, keeper.answers)
        return ContinuousView(view, plan, statics_of(files), keeper.runtime.settings.time_zone)

    def explained(self, keeper: Keeper, statement: CreateView) -> list[str]:
        view, plan = self.defined(keeper, statement, keeper.runtime.analyzer())
        if plan is None:
            return [f"View {view.name}: an ordinary view, computed when it is queried"]
        old = keeper.runtime.catalog.find(view.name) if statement.or_replace else None
        return explained(keeper.runtime, view, plan, self.inherited(keeper, old, plan) if old is not None else ())

    def plan_of(self, kept: ContinuousView) -> Cut:
        return kept.layers if isinstance(kept, MaterializedView) else kept.plan

    def inherited(self, keeper: Keeper, old: Relation, plan: Cut) -> Mapping[str, int]:
        """The references of states that both compute."""
        before = keeper.of(old) if old.is_kept else None
        if not isinstance(before, MaterializedView) or isinstance(plan, SplitPlan) or before.may_stand_apart:
            return {}  # or its states may be of an earlier epoch
        return {name: old.owns[same] for name, same in same_states(plan, before.layers).items()}

    def founding(self, keeper: Keeper, relation: Relation, plan: Cut) -> Founding | None:
        if isinstance(plan, SplitPlan):
            return None
        kept = self.compiled(keeper, relation, plan)
        assert isinstance(kept, MaterializedView)
        olds = {state.ref: owner for state in kept.states if (owner := keeper.owner(state.ref)) is not None}
        inherited = {ref: owner for ref, owner in olds.items() if owner.relation is not relation}
        return Founding(keeper.runtime, keeper.foundings, kept, kept.maintenance, inherited)

    @contextmanager
    def begun(self, keeper: Keeper, relation: Relation, plan: Cut) -> Iterator[Kept]:
        """Its static build sides written; those that no other view has go again if the block raises."""
        assert isinstance(plan, SplitPlan)
        runtime = keeper.runtime
        files: dict[str, Path] = {}
        known = keeper.build_sides() if plan.statics else set()
        others = frozenset(known)
        try:
            for static in plan.statics:
                rows = query.run_now(runtime, static.plan)
                files[static.name] = _build_side(runtime, rows.rename_columns([f.name for f in static.schema]), known)
                known.add(files[static.name])
            view = self._compiled(keeper, relation, plan, files)
            view.first = _of_no_stream(runtime, view)
            _ = view.pipelines  # compiled now, so that an error comes before the view is committed
            with _sides(keeper, view):
                yield view
        except BaseException:
            for file in set(files.values()) - others:
                runtime.store.let_go(file)
            raise

    def reopened(self, keeper: Keeper, relation: Relation, snapshot: Snapshot) -> ContinuousView:
        assert isinstance(relation, View)
        statement = parse(relation.text)
        assert isinstance(statement, CreateView)
        catalog = keeper.runtime.catalog.as_read_by(relation)
        plan, _ = split_view(statement, catalog, keeper.runtime.analyzer(relation.types), relation.tables)
        assert plan is not None
        view = self._compiled(keeper, relation, plan, _static_files(snapshot, relation))
        _bring_up_to_date(keeper.runtime, snapshot, view)
        return view

    def created(self, kept: ContinuousView) -> str:
        return f"{kept.relation.called} {kept.name} created{_tables_note(kept)}"

    def restarted(self, kept: ContinuousView) -> str:
        if kept.relation.materialized:
            return f"{kept.name} was computed anew"
        return f"{kept.name} counts from now{_tables_note(kept)}"

    def refreshed(self, keeper: Keeper, kept: ContinuousView, rows: int) -> str:
        last = keeper.answers.last(kept.name)
        when = f" as of epoch {last.epoch}, computed in {1000 * last.seconds:,.1f} ms" if last is not None else ""
        return f"{kept.name} has {counted(rows, 'row')}{when}"


def _tables_note(view: ContinuousView) -> str:
    """When tables below its groupings are read, and what becomes of their changes."""
    again = f"later changes there will not show until REFRESH VIEW {view.name} RESTART"
    notes = []
    if view.followed_tables:
        said = "as of its own commit: later changes there show in later rows"
        notes.append(f"each row sees {', '.join(view.followed_tables)} {said}")
    if view.frozen_tables:
        notes.append(f"{', '.join(view.frozen_tables)} read now, once: {again}")
    if view.counted_tables:
        notes.append(f"rows of {', '.join(view.counted_tables)} counted now, once: {again}")
    return "".join(f"; {note}" for note in notes)


def _of_no_stream(runtime: Runtime, view: ContinuousView) -> dict[int, pa.Table]:
    """The state rows a view begins with, by state: those of what never changes."""
    found: dict[int, list[pa.Table]] = {}
    for pipeline in view.initial:
        found.setdefault(pipeline.state, []).append(query.run_now(runtime, pipeline.plan))
    return {state: pa.concat_tables(rows) for state, rows in found.items()}


@contextmanager
def _sides(keeper: Keeper, view: ContinuousView) -> Iterator[None]:
    """The build sides that follow their tables made, so that an error comes before the view is committed."""
    try:
        with keeper.sides.as_of_now([view]):
            pass
        yield
    except BaseException:
        keeper.forget_sides(view)
        raise


def _build_side(runtime: Runtime, rows: pa.Table, known: Collection[Path]) -> Path:
    """A file of these rows: one of those that are known if it holds the same, else a new one.

    Files are the same if their bytes are, and a file's name tells its bytes. Spark's workers, which outlive
    databases, keep build sides by that name. Only files of living views may be known: one that nobody names
    any more may be deleted at any time.
    """
    written = runtime.scratch_file(".parquet")
    try:
        with writing(written):
            write_parquet(rows.combine_chunks(), written)
        with written.open("rb") as bytes_:
            name = f"static_{hashlib.file_digest(bytes_, 'sha256').hexdigest()[:40]}"
        if same := next((file for file in known if file.name.startswith(f"{name}-")), None):
            return same
        file = runtime.store.new_segment(name)
        with writing(file):
            os.replace(written, file)
        return file
    finally:
        written.unlink(missing_ok=True)


def _static_files(snapshot: Snapshot, view: View) -> dict[str, Path]:
    """The files of a stored view's static build sides, by their names in its plan."""
    if STATICS not in view.owns:
        return {}
    by_file = {p.name: p for p in snapshot.segments(view.owns[STATICS])}
    rows = snapshot.scan(view.owns[STATICS]).to_pylist()
    return {row["name"]: by_file[row["file"]] for row in rows}


def _bring_up_to_date(runtime: Runtime, snapshot: Snapshot, view: ContinuousView) -> None:
    """Keep the states an earlier Headrace left in the types this one gives them.

    Earlier ones kept no ``rest`` of a mean, whose columns come last.
    """
    stale: dict[int, pa.Schema] = {}
    for state in view.states:
        assert state.folds is not None
        since = {c.name for c, a in state.folds.partials if a.fn == "rest"}
        stored = snapshot.schema(state.ref) if snapshot.has(state.ref) else None
        names = state.schema.names
        if stored is None or stored.names not in (names, [n for n in names if n not in since]):
            raise StoreError(
                "STATE_OUTDATED",
                f"the state of view {view.name} has other columns than this Headrace keeps for it",
                hint="open the database with the Headrace that wrote it, and make the view anew with this one",
            )
        if stored != state.schema:
            stale[state.ref] = state.schema

    def work(tx: Transaction) -> None:
        for ref, wanted in stale.items():
            tx.reshape(ref, wanted)

    if stale:
        hint = f"query it once before the batch: SELECT * FROM {view.name}"
        runtime.store.refuse_in_batch(f"bringing the states of {view.name} up to date", hint)
        runtime.store.commit(work, label="states of an earlier Headrace")


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


Cut = SplitPlan | LayeredPlan
"""How a view's plan is kept: between inserts and queries, or in layers that follow tables."""


def split_view(
    statement: CreateView, catalog: Catalog, analyzer: QueryAnalyzer, tables: str
) -> tuple[Cut | None, Schema]:
    """The view's cut plan if it reads a stream, else nothing to keep; rows see tables as they then were.

    ``tables`` is one of :data:`~headrace.catalog.view.TABLES_SEEN`.
    """
    catalog = unfolded(catalog) if statement.materialized else catalog
    plan, schema = plan_view(statement, catalog, analyzer)
    if statement.materialized:
        if statement.tables is not None:
            raise SqlError(
                "TABLES_WITHOUT_STREAM",
                f"{statement.name} follows its tables, whatever rows of a stream see",
                position=statement.position,
                hint="leave tables out",
            )
        if statement.retain is not None:
            raise NotYetSupported(
                "to retain groups of rows that may be taken back", position=statement.position, hint="leave retain out"
            )
        answer = statement.keep_changes is not None
        return followed(plan, catalog, statement.position, answer=answer), schema
    if statement.keep_changes is not None:
        raise SqlError(
            "VIEW_OPTION_UNKNOWN",
            f"{statement.name} keeps no changes: keep_changes is for materialized views",
            position=statement.position,
            hint="CREATE MATERIALIZED VIEW, or leave keep_changes out",
        )
    if streams_in(plan):
        for scan in leaves(plan):
            if isinstance(scan.ref, RelationRef) and (read := catalog.at(scan.ref.number)) is not None:
                read.refuse_in_view(statement.position)
        found = split(plan, statement.retain)
        return found.following() if tables == ARRIVAL else found, schema
    if statement.tables is not None:
        raise SqlError(
            "TABLES_WITHOUT_STREAM",
            f"{statement.name} reads no stream, so it sees tables as they are when it is queried",
            position=statement.position,
            hint="leave tables out",
        )
    if statement.retain is not None:
        raise SqlError(
            "RETAIN_WITHOUT_STREAM",
            f"{statement.name} reads no stream, so it keeps no groups to retain",
            position=statement.position,
            hint="leave retain out, or filter by time",
        )
    return None, schema


def _refuse_nondeterministic_below(statement: CreateView, reads: Sequence[str], catalog: Catalog) -> None:
    """An error for what the views that it reads compute when they are queried, and gives something else each time."""
    for relation in map(catalog.get, reads):
        if relation.expansion is not None:
            read = parse(relation.expansion)
            assert isinstance(read, CreateView)
            try:
                refuse_nondeterministic(read.query)
            except ViewRefused as error:
                at = statement.position
                raise ViewRefused(
                    error.condition, f"{relation.name}, which it reads: {error.message}", position=at, hint=error.hint
                ) from None
            below = catalog.as_read_by(relation)
            _refuse_nondeterministic_below(statement, [r.name for r in map(below.find, relation.reads) if r], below)


def reads_of(statement: CreateView, catalog: Catalog) -> tuple[str, ...]:
    """The relations of the catalog a view's text names, as the catalog spells them; what only Spark reads, once it is
    bound."""
    ctes = {c.alias.lower() for c in statement.query.find_all(exp.CTE)}
    found = {t.name.lower() for t in statement.query.find_all(exp.Table)} - ctes
    shadowed = {t.name.lower() for t in statement.query.find_all(exp.Table) if t.name.lower() in ctes}
    only_by_spark = {name for part in statement.query.find_all(Opaque) for name in part.read}
    names = found | only_by_spark | {n for n in shadowed if catalog.find(n) is not None}
    return tuple(sorted(r.name for r in map(catalog.find, names) if r is not None))
