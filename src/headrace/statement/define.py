"""CREATE and DROP: definitions change in one commit, together with the state they own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from headrace.base.interrupts import committed
from headrace.base.parquet_files import write_parquet
from headrace.base.wording import counted
from headrace.catalog import (
    KINDS,
    Catalog,
    FileSource,
    Relation,
    Stream,
    Table,
    View,
    check_names,
    in_use,
    numbered,
    to_json,
)
from headrace.errors import CatalogError, NotYetSupported, Position, SqlError
from headrace.keep.family import Family, family_of
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.plan.nodes import Node
from headrace.rings.layout import Layout
from headrace.runtime import Runtime
from headrace.settings import memory_bytes
from headrace.sql import statements as s
from headrace.statement.readers import repointed
from headrace.store import Transaction, writing
from headrace.table import files as file_tables
from headrace.table import history
from headrace.table import rows as tables
from headrace.table.constraints import check_of, default_of
from headrace.types import MAP_HINT, VOID, Field, Schema, arrow_schema

R = TypeVar("R", bound=Relation)


@dataclass(frozen=True)
class News:
    """What a change of definitions has to tell other processes."""

    told: list[tuple[str, Relation | None, int]] = field(default_factory=list)
    """As :attr:`Runtime.untold`."""
    forsaken: list[tuple[str, int]] = field(default_factory=list)
    """As :attr:`Runtime.forsaken`."""


class Definer:
    """Makes and drops relations."""

    def __init__(self, runtime: Runtime, keeper: Keeper) -> None:
        self._runtime = runtime
        self._keeper = keeper

    def create(self, statement: s.Create) -> str:
        if (family := family_of(statement)) is not None:
            return self._create_kept(family, statement)
        with self._runtime.tables_lock:
            if self.exists(statement):
                return f"{statement.name} exists already"
            relation: Relation
            if isinstance(statement, s.CreateStream):
                relation = self._with_defaults(_stream(statement), statement)
            elif not isinstance(statement, s.CreateTable):
                raise AssertionError(f"nobody makes {type(statement).__name__}")
            elif statement.files is not None:
                return self._create_over_files(statement, statement.files)
            else:
                key = {k.lower() for k in statement.primary_key}
                names = tuple(c.name for c in statement.columns if c.name.lower() in key)
                keep_changes = statement.keep_changes
                table = Table(statement.name, statement.columns, names, keep_changes=keep_changes)
                _check_kept(table, statement.position)
                relation = self._with_rules(table, statement)

            def work(tx: Transaction) -> None:
                if isinstance(relation, Table):
                    tx.create_relation(relation.number, tables.tail_schema(relation))
                    history.begin(tx, relation, f"CREATE TABLE {relation.name}")

            try:
                if isinstance(relation, Stream) and relation.buffer is not None:
                    self._runtime.rings.open(relation)  # first: there may be no room for it
                self._define(relation, work, statement)
            except BaseException:
                if relation.is_stream:
                    self._runtime.rings.drop(relation.name)
                raise
            return f"{relation.kind} {relation.name} created"

    def _with_rules(self, table: Table, statement: s.CreateTable) -> Table:
        """The table, numbered, with the defaults and conditions that its statement says."""
        found = self._with_defaults(table, statement)
        for check in statement.rules.checks:
            found = replace(found, checks=(*found.checks, check_of(self._runtime, check, found)))
        return found

    def _with_defaults(self, relation: R, statement: s.CreateStream | s.CreateTable) -> R:
        check_names(relation, statement.position)
        rules = statement.rules
        columns = tuple(
            replace(c, default=default_of(self._runtime, written, c)) if (written := rules.defaults.get(c.name)) else c
            for c in relation.columns
        )
        return self._numbered(replace(relation, columns=columns))

    def exists(self, statement: s.Create) -> bool:
        """Whether the name is taken; an error unless the statement says IF NOT EXISTS or OR REPLACE."""
        if statement.or_replace:
            self._replaced(statement)
            return False
        if statement.if_not_exists:
            return self._runtime.catalog.find(statement.name) is not None
        self._runtime.catalog.require_free(statement.name, statement.position)
        return False

    def _replaced(self, statement: s.Create) -> Relation | None:
        """What is there to be replaced."""
        old = self._runtime.catalog.find(statement.name) if statement.or_replace else None
        kind = "view" if isinstance(statement, s.CreateView) else "table"
        if old is not None and old.kind != kind:
            raise CatalogError(
                "WRONG_COMMAND_FOR_OBJECT_TYPE",
                f"{old.name} is a {old.kind}, which CREATE OR REPLACE {kind.upper()} does not replace",
                position=statement.position,
                hint=f"DROP {old.kind.upper()} {old.name} first, or choose another name",
            )
        return old

    def create_filled(self, table: Table, rows: pa.Table, statement: s.Create) -> str:
        """A table and its first rows, in one commit."""
        _check_kept(table, statement.position)
        table = self._numbered(table)
        relation = table.number
        rows = rows.rename_columns([c.name for c in table.columns]).cast(arrow_schema(table.columns))
        file = self._runtime.store.new_segment(relation) if rows.num_rows >= tables.TAIL_ROWS else None

        def work(tx: Transaction) -> None:
            tx.create_relation(relation, tables.tail_schema(table))
            if file is None:
                tables.append(self._runtime, tx, table, rows)
            else:
                tx.add_segment(relation, file, rows.num_rows)
                tx.count(relation, rows.num_rows)
            history.begin(tx, table, f"CREATE TABLE {table.name}")

        try:
            if file is not None:
                with writing(file):
                    write_parquet(rows, file)
            self._define(table, work, statement)
        except BaseException:
            if file is not None:
                self._runtime.store.let_go(file)
            raise
        return f"table {table.name} created with {counted(rows.num_rows, 'row')}"

    def _create_over_files(self, statement: s.CreateTable, source: FileSource) -> str:
        table = self._numbered(file_tables.declared(statement.name, statement.columns, source, statement.position))
        found = file_tables.mark(table)

        def work(tx: Transaction) -> None:
            tx.create_relation(table.number, file_tables.MANIFEST)
            tx.append(table.number, file_tables.manifest(found))

        self._define(table, work, statement)
        self._runtime.file_marks[table] = found
        return f"table {table.name} created over {counted(len(found), 'file')}, read at each query"

    def drop(self, statement: s.Drop) -> str:
        with self._runtime.tables_lock:
            catalog = self._runtime.catalog
            if statement.if_exists and catalog.find(statement.name) is None:
                return f"{statement.name} does not exist"
            relation: Relation = catalog.get(statement.name, KINDS[statement.kind], position=statement.position)
            dependents = catalog.all_dependents(relation.name)
            if dependents and not statement.cascade:
                hint = "drop {} first, or write DROP … CASCADE to drop all that reads it"
                raise in_use(relation.name, catalog.dependents(relation.name), statement.position, hint)
            self._drop((*dependents, relation))
            also = ", ".join(v.name for v in sorted(dependents, key=lambda v: v.name.lower()))
            kinds_ = {d.kind for d in dependents}
            kind = kinds_.pop() if len(kinds_) == 1 else "relation"
            views = f"{kind}{'' if len(dependents) == 1 else 's'}"
            return f"{relation.kind} {relation.name} dropped" + (f", and {views} {also}" if also else "")

    def _drop(self, relations: Sequence[Relation]) -> None:
        """Relations nobody else reads, with all they own, in one commit."""
        kept = [k for r in relations if (k := self._keeper.known(r)) is not None]
        catalog = self._runtime.catalog.without(*(relation.name for relation in relations))

        def work(tx: Transaction) -> News:
            return self._removed(tx, relations)

        def left() -> None:
            for one in kept:
                self._keeper.leave(one)

        self.commit(catalog, work, f"DROP {relations[-1].name}", left=left)
        for relation in relations:
            if relation.is_stream:
                with self._runtime.tidying.after(f"removing the buffer of {relation.name}"):
                    self._runtime.rings.drop(relation.name)
        for one in kept:
            self._keeper.forget(one)

    def _removed(self, tx: Transaction, relations: Sequence[Relation], inherited: Collection[int] = ()) -> News:
        """Take relations away with all they own, but what another one inherits."""
        news = News()
        for relation in relations:
            made = tx.drop(relation.name)
            tx.forget_count(relation.number)
            for ref in relation.owns.values():
                if ref not in inherited:
                    tx.drop_relation(ref)
            news.told.append((relation.name, None, tx.epoch))
            news.forsaken.append((relation.born or relation.name, made))
        return news

    # What is kept

    def _create_kept(self, family: Family, statement: s.Create) -> str:
        exists = f"{statement.name} exists already"

        def define(kept: Kept) -> str:
            begin = partial(self._keeper.found, kept=kept)
            self._define(kept.relation, begin, statement, partial(self._keeper.enter, kept))
            return family.created(kept)

        with ExitStack() as block:
            with self._runtime.tables_lock:
                if self.exists(statement):
                    return exists
                found, plan = family.defined(self._keeper, statement, self._runtime.analyzer())
                relation = self._numbered(found)
                if plan is None:
                    self._define(relation, lambda tx: None, statement)
                    return f"{relation.kind} {relation.name} created"
                old = self._replaced(statement)
                taken = family.inherited(self._keeper, old, plan) if old is not None else {}
                owns = {role: taken.get(role) or self._runtime.store.new_number() for role in family.holds(plan)}
                relation = replace(relation, owns={**relation.owns, **owns})
                founding = family.founding(self._keeper, relation, plan)
                if founding is None:
                    with family.begun(self._keeper, relation, plan) as kept:
                        return define(kept)
                block.enter_context(founding)
            founding.run()
            with self._runtime.tables_lock:
                if self.exists(statement):  # another one was quicker
                    return exists
                founding.finish()
                return define(founding.kept)

    def _numbered(self, relation: R) -> R:
        """The relation with a number, which makes what it names certain from here on."""
        reads = (self._runtime.catalog.get(name) for name in relation.reads)
        found = numbered(relation, self._runtime.store.new_number(), reads)
        return replace(found, owns={**found.owns, **history.owned(self._runtime.store, found)})

    def restart(self, name: str) -> str:
        """Begin a kept relation again, in one commit: its tables are read anew and its states emptied.

        Inserts acknowledged before it are gone from it, those after it count: state rows
        computed before it are void, as after any change of definitions.
        """
        with ExitStack() as block:
            with self._runtime.tables_lock:
                old: Kept = self._keeper.get(name)
                relation, family = old.relation, self._keeper.family(old.relation)
                founding = family.founding(self._keeper, relation, family.plan_of(old))
                if founding is None:
                    with family.begun(self._keeper, relation, family.plan_of(old)) as new:
                        self._restart(old, new)
                    return family.restarted(new)
                block.enter_context(founding)
            founding.run()
            with self._runtime.tables_lock:
                self._runtime.catalog.require_there(relation)
                founding.finish()
                self._restart(self._keeper.get(name), founding.kept)
            return family.restarted(founding.kept)

    def _restart(self, old: Kept, new: Kept) -> None:
        relation = new.relation

        def work(tx: Transaction) -> News:
            for ref in relation.owns.values():
                tx.drop_relation(ref)
            tx.forget_count(relation.number)
            self._keeper.found(tx, new)
            return News()

        newer = self._runtime.catalog.with_relation(relation)
        label = f"REFRESH {relation.kind.upper()} {relation.name} RESTART"
        self.commit(newer, work, label, partial(self._keeper.enter, new))
        self._keeper.forget(old)

    # Commits

    def _define(
        self,
        relation: Relation,
        work: Callable[[Transaction], Any],
        statement: s.Create,
        entering: Callable[[], None] = lambda: None,
    ) -> None:
        check_names(relation, statement.position)
        old = self._replaced(statement)
        views = self._read_anew(old, relation, statement.position) if old is not None else []
        gone = [old] if old is not None else []
        kept = [k for r in gone if (k := self._keeper.known(r)) is not None]
        catalog = self._runtime.catalog
        catalog = catalog.with_relation(relation) if old is None else catalog.replaced(old, relation, *views)

        def all_of_it(tx: Transaction) -> News:
            news = self._removed(tx, gone, set(relation.owns.values()))
            tx.put(relation.name, relation.kind, to_json(relation))
            news.told.append((relation.name, relation, tx.epoch))
            for view in views:
                news.told.append((view.name, view, tx.redefine(view.name, to_json(view))))
            work(tx)
            return news

        def left() -> None:
            for one in kept:
                self._keeper.leave(one)

        label = f"CREATE{' OR REPLACE' if statement.or_replace else ''} {relation.kind.upper()} {relation.name}"
        self.commit(catalog, all_of_it, label, entering, left)
        for one in kept:
            self._keeper.forget(one)

    def _read_anew(self, old: Relation, new: Relation, position: Position) -> list[Relation]:
        """The views that read what is replaced, as they read what takes its place."""
        read = [r for name in new.reads if (r := self._runtime.catalog.find(name)) is not None]
        if any(r is old or r in self._runtime.catalog.all_dependents(old.name) for r in read if not new.is_table):
            raise CatalogError(
                "RECURSIVE_VIEW",
                f"{new.name} would read itself",
                position=position,
                hint="read what the old one reads; DESCRIBE shows its text",
            )
        views, others = repointed(self._runtime, old, new)
        if others:
            raise in_use(
                old.name,
                others,
                position,
                "drop {} first; a view that is computed when it is queried may stay if its columns stay as they are",
            )
        return views

    def commit(
        self,
        catalog: Catalog,
        work: Callable[[Transaction], News],
        label: str,
        entering: Callable[[], None] = lambda: None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit a change of definitions. From the moment the writer has it, state rows computed
        under the older catalog are refused (:class:`~headrace.stream.intake.StaleCatalog`).

        When it is durable, what is ``entering`` is made known, then the new catalog, and then what has ``left`` is
        forgotten. The writer does it before it answers: no interrupt of the caller comes between what is stored and
        what this process knows."""
        before = self._runtime.writer_version
        fitted = self._fitted(catalog)
        catalog = catalog.with_relation(*(new for _, new in fitted)) if fitted else catalog

        def on_writer(tx: Transaction) -> News:
            news = work(tx)
            for old, new in fitted:
                tx.redefine(new.name, to_json(new))
                history.alter(tx, old, new, label)
            self._runtime.writer_version = catalog.version
            return news

        def show(news: News) -> None:
            entering()
            self._runtime.catalog = catalog
            self._runtime.indexes.keep_only(catalog.numbers)
            self._runtime.columns.clear(catalog.numbers)
            self._runtime.untold += news.told
            self._runtime.forsaken += news.forsaken
            left()

        try:
            self._runtime.store.commit(on_writer, label=label, settled=show)
            committed()
        except BaseException:
            self._runtime.writer_version = before
            raise

    def _fitted(self, catalog: Catalog) -> list[tuple[Table, Table]]:
        """The tables of a catalog that are to have a history from its commit on, or none any more."""
        found = []
        for table in catalog.of_kind(Table):
            readers = catalog.all_dependents(table.name)
            followed = any(isinstance(r, View) and r.materialized and r.refreshing.follows_log for r in readers)
            new = history.fitted(self._runtime.store, table, followed)
            if new is not table:
                if table.keep_changes is None and followed:
                    history.check_columns(table.columns, table.name, None)
                found.append((table, new))
        return found


def _check_kept(table: Table, position: Position) -> None:
    if table.keep_changes is not None:
        history.check_columns(table.columns, table.name, position)


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
