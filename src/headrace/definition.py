"""CREATE and DROP: definitions change in one commit, together with the state they own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace import file_tables, query, tables
from headrace.catalog import Catalog, FileSource, Relation, Sample, Stream, Table, View, check_names, kind_of, to_json
from headrace.engine.analyzer import SparkAnalyzer
from headrace.errors import CatalogError, NotYetSupported, Position, SqlError, ViewRefused
from headrace.interrupts import committed
from headrace.parquet_files import footer_of, write_parquet
from headrace.plan.nodes import Node, Scan, walk_plan
from headrace.plan.pipelines import SplitPlan
from headrace.runtime import Runtime
from headrace.sample.kept import KeptSample, Samples
from headrace.settings import memory_bytes
from headrace.sql import statements as s
from headrace.sql.expressions import position_of
from headrace.store import Snapshot, Transaction, writing
from headrace.stream.intake import stream_count
from headrace.stream.ring.layout import Layout
from headrace.types import MAP_HINT, VOID, Field, Schema, arrow_schema
from headrace.view import retention
from headrace.view.compiled import (
    ContinuousView,
    reads_of,
    split_view,
    static_relation,
    statics_of,
)
from headrace.view.reading import Answers
from headrace.wording import counted


class Definer:
    """Makes and drops relations."""

    def __init__(self, runtime: Runtime, views: dict[str, ContinuousView], answers: Answers, samples: Samples) -> None:
        self._runtime = runtime
        self._views = views
        self._answers = answers
        self._samples = samples

    def create(self, statement: s.CreateStream | s.CreateTable | s.CreateView | s.CreateSample) -> str:
        with self._runtime.tables_lock:
            if self.exists(statement):
                return f"{statement.name} exists already"
            if isinstance(statement, s.CreateView):
                return self._create_view(statement)
            if isinstance(statement, s.CreateSample):
                return self._create_sample(statement)
            relation: Relation
            if isinstance(statement, s.CreateStream):
                relation = _stream(statement)
            elif statement.files is not None:
                return self._create_over_files(statement, statement.files)
            else:
                key = {k.lower() for k in statement.primary_key}
                relation = Table(
                    statement.name, statement.columns, tuple(c.name for c in statement.columns if c.name.lower() in key)
                )

            def work(tx: Transaction) -> None:
                if isinstance(relation, Table):
                    tx.create_relation(tables.tail_of(relation.name), arrow_schema(relation.columns))

            try:
                if isinstance(relation, Stream) and relation.buffer is not None:
                    self._runtime.rings.open(relation)  # first: there may be no room for it
                self._define(self._runtime.catalog.with_relation(relation), relation, work, at=statement.position)
            except BaseException:
                self._runtime.rings.drop(relation.name)
                raise
            return f"{kind_of(relation)} {relation.name} created"

    def exists(self, statement: s.Create) -> bool:
        """Whether the name is taken; an error unless the statement says IF NOT EXISTS."""
        if statement.if_not_exists:
            return self._runtime.catalog.find(statement.name) is not None
        self._runtime.catalog.require_free(statement.name, statement.position)
        return False

    def create_filled(self, table: Table, rows: pa.Table, at: Position) -> str:
        """A table and its first rows, in one commit."""
        relation = tables.tail_of(table.name)
        rows = rows.rename_columns([c.name for c in table.columns]).cast(arrow_schema(table.columns))
        file = self._runtime.store.new_segment(relation) if rows.num_rows >= tables.TAIL_ROWS else None

        def work(tx: Transaction) -> None:
            tx.create_relation(relation, arrow_schema(table.columns))
            if file is None:
                tx.append(relation, rows)
            else:
                tx.add_segment(relation, file, rows.num_rows)
            tx.count(relation, rows.num_rows)

        try:
            if file is not None:
                with writing(file):
                    write_parquet(rows, file)
            self._define(self._runtime.catalog.with_relation(table), table, work, at=at)
        except BaseException:
            if file is not None:
                self._runtime.store.let_go(file)
            raise
        return f"table {table.name} created with {counted(rows.num_rows, 'row')}"

    def _create_over_files(self, statement: s.CreateTable, source: FileSource) -> str:
        table = file_tables.declared(statement.name, statement.columns, source, statement.position)
        found = file_tables.mark(table)

        def work(tx: Transaction) -> None:
            tx.create_relation(tables.tail_of(table.name), file_tables.MANIFEST)
            tx.append(tables.tail_of(table.name), file_tables.manifest(found))

        self._define(self._runtime.catalog.with_relation(table), table, work, at=statement.position)
        self._runtime.file_marks[table] = found
        return f"table {table.name} created over {counted(len(found), 'file')}, read at each query"

    def drop(self, statement: s.Drop) -> str:
        with self._runtime.tables_lock:
            catalog = self._runtime.catalog
            if statement.if_exists and catalog.find(statement.name) is None:
                return f"{statement.name} does not exist"
            kinds: dict[str, type] = {"stream": Stream, "table": Table, "view": View, "sample": Sample}
            relation: Relation = catalog.get(statement.name, kinds[statement.kind], position=statement.position)
            dependents = catalog.all_dependents(relation.name)
            if dependents and not statement.cascade:
                names = ", ".join(v.name for v in catalog.dependents(relation.name))
                raise CatalogError(
                    "RELATION_IN_USE",
                    f"{relation.name} is read by {names}",
                    position=statement.position,
                    hint=f"drop {names} first, or write DROP … CASCADE to drop all that reads it",
                )
            self._drop((*dependents, relation))
            also = ", ".join(v.name for v in sorted(dependents, key=lambda v: v.name.lower()))
            kinds_ = {kind_of(d) for d in dependents}
            kind = kinds_.pop() if len(kinds_) == 1 else "relation"
            views = f"{kind}{'' if len(dependents) == 1 else 's'}"
            return f"{kind_of(relation)} {relation.name} dropped" + (f", and {views} {also}" if also else "")

    def _drop(self, relations: Sequence[Relation]) -> None:
        """Relations nobody else reads, with all they own, in one commit."""
        views = [v for r in relations if (v := self._views.get(r.name.lower())) is not None]
        catalog = self._runtime.catalog
        for relation in relations:
            catalog = catalog.without(relation.name)

        def work(tx: Transaction) -> None:
            for relation in relations:
                tx.drop(relation.name)
                if isinstance(relation, Stream):
                    tx.forget_count(stream_count(relation.name))
                if isinstance(relation, Table):
                    tx.drop_relation(tables.tail_of(relation.name))
                    tx.forget_count(tables.tail_of(relation.name))
                if isinstance(relation, Sample):
                    _drop_sample(tx, self._samples.get(relation.name))
            for view in views:
                _drop_states(tx, view)

        def left() -> None:
            for view in views:
                del self._views[view.name.lower()]
            for relation in relations:
                self._samples.forget(relation.name)

        self._commit(catalog, work, f"DROP {relations[-1].name}", leaving=left)
        for relation in relations:
            if isinstance(relation, Stream):
                with self._runtime.tidying.after(f"removing the buffer of {relation.name}"):
                    self._runtime.rings.drop(relation.name)
        for view in views:
            self._forget(view)

    # Samples

    def _create_sample(self, statement: s.CreateSample) -> str:
        _refuse_nondeterministic(statement)
        sample, plan = self._samples.compiled(statement, self._runtime.analyzer())
        kept = self._samples.made(sample, plan)
        newer = self._runtime.catalog.with_relation(sample)
        entered = partial(self._samples.enter, kept)
        self._define(newer, sample, lambda tx: _found_sample(tx, kept), entered, at=statement.position)
        each = f" for each {', '.join(sample.keys)}" if sample.keys else ""
        return f"sample {sample.name} created: {counted(sample.size, 'row')} of {sample.of}{each}"

    def restart_sample(self, name: str) -> str:
        """Begin a sample again, in one commit; rows drawn before it are void."""
        with self._runtime.tables_lock:
            old = self._samples.get(name)
            new = self._samples.made(old.sample, old.plan)

            def work(tx: Transaction) -> None:
                _drop_sample(tx, old)
                _found_sample(tx, new)

            newer = self._runtime.catalog.with_relation(old.sample)
            self._commit(newer, work, f"REFRESH SAMPLE {old.name} RESTART", lambda: self._samples.enter(new))
        return f"{old.name} draws from now on"

    # Views

    def plan_view(self, statement: s.CreateView, analyzer: SparkAnalyzer) -> tuple[SplitPlan | None, View]:
        """The view a statement would make, and how it would be split; nothing is changed."""
        reads = reads_of(statement, self._runtime.catalog)
        if any(isinstance(self._runtime.catalog.find(name), Stream) for name in reads):
            _refuse_nondeterministic(statement)  # before Spark is started to give such a function its type
        plan, schema = split_view(statement, self._runtime.catalog, analyzer)
        if plan is not None:
            _refuse_nondeterministic(statement)
            _refuse_samples(plan, statement)
        return plan, View(statement.name, schema, statement.text, plan is not None, reads, dict(analyzer.answers))

    def _create_view(self, statement: s.CreateView) -> str:
        plan, view = self.plan_view(statement, self._runtime.analyzer())
        catalog = self._runtime.catalog.with_relation(view)
        if plan is None:
            self._define(catalog, view, lambda tx: None, at=statement.position)
            return f"view {view.name} created"
        with self._begun(view, plan) as (compiled, found):
            self._define(catalog, view, found, lambda: self._enter(compiled), at=statement.position)
        return f"continuous view {view.name} created{_frozen_note(compiled)}"

    def restart(self, name: str) -> str:
        """Begin a continuous view again, in one commit: its tables are read anew and its states emptied.

        Inserts acknowledged before it are gone from the view, those after it count: state rows
        computed before it are void, as after any change of definitions.
        """
        with self._runtime.tables_lock:
            old = self._views[name.lower()]
            view = old.view
            with self._begun(view, old.plan) as (compiled, found):

                def work(tx: Transaction) -> None:
                    _drop_states(tx, old)
                    found(tx)

                newer = self._runtime.catalog.with_relation(view)
                self._commit(newer, work, f"REFRESH VIEW {view.name} RESTART", lambda: self._enter(compiled))
            self._forget(old)
        return f"{view.name} counts from now{_frozen_note(compiled)}"

    @contextmanager
    def _begun(self, view: View, plan: SplitPlan) -> Iterator[tuple[ContinuousView, Callable[[Transaction], None]]]:
        """The view compiled, its static build sides written, and the work that founds its states.

        Files written for it go again if the block raises.
        """
        files: dict[str, Path] = {}
        known = {s.path for v in self._views.values() for s in v.statics.values()}
        shared = frozenset(known)
        try:
            for static in plan.statics:
                rows = query.run_now(self._runtime, static.plan)
                files[static.name] = self._build_side(rows.rename_columns([f.name for f in static.schema]), known)
                known.add(files[static.name])
            compiled = ContinuousView(view, plan, statics_of(files), self._runtime.settings.time_zone)
            # A UNION ALL branch that reads only tables adds to the state once, here.
            initial = {p.state: query.run_now(self._runtime, p.plan) for p in compiled.initial}
            compiled.compile()

            def found(tx: Transaction) -> None:
                for state in plan.states:
                    tx.create_relation(compiled.relation(state), arrow_schema(state.schema))
                if files:
                    tx.create_relation(
                        static_relation(view.name), pa.schema([("name", pa.string()), ("file", pa.string())])
                    )
                    names, paths = zip(*((n, f.name) for n, f in files.items()), strict=True)
                    tx.append(static_relation(view.name), pa.table({"name": list(names), "file": list(paths)}))
                    for file in set(files.values()):
                        tx.add_segment(static_relation(view.name), file, footer_of(file).num_rows)
                first = dict(initial)
                admission = retention.admit(tx, compiled, first)
                tx.append_batches(first)
                admission.settle(tx)

            yield compiled, found
        except BaseException:
            for file in set(files.values()) - shared:
                self._runtime.store.let_go(file)
            raise

    def _build_side(self, rows: pa.Table, known: Collection[Path]) -> Path:
        """A file of these rows: one of those that are known if it holds the same, else a new one.

        Files are the same if their bytes are, and a file's name tells its bytes. Spark's workers, which outlive
        databases, keep build sides by that name. Only files of living views may be known: one that nobody names
        any more may be deleted at any time.
        """
        written = self._runtime.scratch_file(".parquet")
        try:
            with writing(written):
                write_parquet(rows.combine_chunks(), written)
            with written.open("rb") as bytes_:
                name = f"static_{hashlib.file_digest(bytes_, 'sha256').hexdigest()[:40]}"
            if same := next((file for file in known if file.name.startswith(f"{name}-")), None):
                return same
            file = self._runtime.store.new_segment(name)
            with writing(file):
                os.replace(written, file)
            return file
        finally:
            written.unlink(missing_ok=True)

    def _enter(self, view: ContinuousView) -> None:
        self._views[view.name.lower()] = view

    def _forget(self, view: ContinuousView) -> None:
        """Let go of what was kept in memory for a view that is no more."""
        with self._runtime.tidying.after(f"forgetting what was kept of {view.name}"):
            self._answers.forget(view)
            used = {static.name for other in self._views.values() for static in other.statics.values()}
            self._runtime.worker.forget([s.name for s in view.statics.values() if s.name not in used])

    def static_files(self, snapshot: Snapshot, view: str) -> dict[str, Path]:
        """The files of a stored view's static build sides, by their names in its plan."""
        if static_relation(view).lower() not in snapshot.relations():
            return {}
        by_file = {p.name: p for p in snapshot.segments(static_relation(view))}
        rows = snapshot.scan(static_relation(view)).to_pylist()
        return {row["name"]: by_file[row["file"]] for row in rows}

    # Commits

    def _define(
        self,
        catalog: Catalog,
        relation: Relation,
        work: Callable[[Transaction], Any],
        entering: Callable[[], None] = lambda: None,
        *,
        at: Position | None,
    ) -> None:
        check_names(relation, at)

        def all_of_it(tx: Transaction) -> None:
            tx.put(relation.name, kind_of(relation), to_json(relation))
            work(tx)

        self._commit(catalog, all_of_it, f"CREATE {kind_of(relation).upper()} {relation.name}", entering)

    def _commit(
        self,
        catalog: Catalog,
        work: Callable[[Transaction], Any],
        label: str,
        entering: Callable[[], None] = lambda: None,
        leaving: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit a change of definitions. From the moment the writer has it, state rows computed
        under the older catalog are refused (:class:`~headrace.stream.intake.StaleCatalog`).

        When it is durable, what is ``entering`` is made known, then the new catalog, and then what is ``leaving`` is
        forgotten. The writer does it before it answers: no interrupt of the caller comes between what is stored and
        what this process knows."""
        before = self._runtime.writer_version

        def on_writer(tx: Transaction) -> None:
            work(tx)
            self._runtime.writer_version = catalog.version

        def show(_: Any) -> None:
            entering()
            self._runtime.catalog = catalog
            leaving()

        try:
            self._runtime.store.commit(on_writer, label=label, settled=show)
            committed()
        except BaseException:
            self._runtime.writer_version = before
            raise


def _stream(statement: s.CreateStream) -> Stream:
    buffer = statement.buffer
    if buffer is not None:
        size = Layout.of(statement.columns, buffer.capacity).bytes
        if size > memory_bytes():
            raise SqlError(
                "STREAM_CAPACITY_TOO_LARGE",
                f"a buffer of {buffer.capacity:,} rows of stream {statement.name} takes {size:,} bytes, "
                "more than this machine has",
                position=statement.position,
                hint="give a smaller capacity",
            )
    return Stream(statement.name, statement.columns, buffer)


def columns_of(plan: Node, table: str, at: Position) -> Schema:
    """The columns a table made from a query has; each must have a name of its own and a type a table can hold."""
    seen: set[str] = set()
    for column in plan.output:
        if column.name.lower() in seen:
            raise SqlError(
                "COLUMN_ALREADY_EXISTS",
                f"{table} would have two columns named {column.name}",
                position=at,
                hint="give one an alias",
            )
        seen.add(column.name.lower())
        if not column.type.is_held or column.type == VOID:
            example = f"cast it in the query, for example CAST({column.name} AS STRING) AS {column.name}"
            raise NotYetSupported(
                f"a table column of type {column.type.sql} ({column.name})",
                position=at,
                hint=MAP_HINT if "map<" in column.type.sql else example,
            )
    return tuple(Field(c.name, c.type) for c in plan.output)


def _found_sample(tx: Transaction, kept: KeptSample) -> None:
    for relation, schema in kept.schemas().items():
        tx.create_relation(relation, schema)


def _drop_sample(tx: Transaction, kept: KeptSample) -> None:
    for relation in kept.schemas():
        tx.drop_relation(relation)


def _drop_states(tx: Transaction, view: ContinuousView) -> None:
    for state in view.plan.states:
        tx.drop_relation(view.relation(state))
    if view.statics:
        tx.drop_relation(static_relation(view.name))
    tx.forget_count(retention.late_count(view.name))


def _frozen_note(view: ContinuousView) -> str:
    if not view.frozen_tables:
        return ""
    return (
        f"; {', '.join(view.frozen_tables)} read now, once: "
        f"later changes there will not show until REFRESH VIEW {view.name} RESTART"
    )


_NONDETERMINISTIC = {
    *("rand", "randn", "random", "uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id"),
    *("now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time", "unix_timestamp"),
    *("input_file_name", "input_file_block_start", "input_file_block_length"),
    *("reflect", "java_method", "try_reflect"),  # whatever Java does
}


def _refuse_samples(plan: SplitPlan, statement: s.CreateView) -> None:
    parts = [plan.upper, *(static.plan for static in plan.statics), *(stream.plan for stream in plan.streams)]
    for part in parts:
        for scan in walk_plan(part):
            if isinstance(scan, Scan) and scan.kind == "sample":
                raise ViewRefused(
                    "SAMPLE_IN_CONTINUOUS_VIEW",
                    f"{scan.relation} is a sample, whose rows are replaced as others come; a continuous view cannot "
                    "take back what it has added up of them",
                    position=statement.position,
                    hint="join it where the view is queried; a view of tables and samples alone is computed then",
                )


def _refuse_nondeterministic(statement: s.CreateView | s.CreateSample) -> None:
    """A view's answer equals a batch query's over the same rows, so it may not depend on when it ran."""
    what = "a view" if isinstance(statement, s.CreateView) else "a sample's condition"
    for node in statement.query.walk():
        if isinstance(node, exp.TableSample):
            raise ViewRefused(
                "NONDETERMINISTIC_VIEW",
                "TABLESAMPLE draws other rows each time, and a view is evaluated at many times",
                position=position_of(node),
                hint="keep a sample of the stream, CREATE SAMPLE s OF stream SIZE n, or draw where the view is queried",
            )
        name = node.name.lower() if isinstance(node, exp.Anonymous | exp.Column) else type(node).__name__.lower()
        called = isinstance(node, exp.Func)
        if called and name.replace("_", "") in {n.replace("_", "") for n in _NONDETERMINISTIC}:
            raise ViewRefused(
                "NONDETERMINISTIC_VIEW",
                f"{name}() gives another value each time it is evaluated, and {what} is evaluated at many times",
                position=position_of(node),
                hint="leave it out, and apply it where the relation is queried",
            )
