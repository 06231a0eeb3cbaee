"""CREATE and DROP: definitions change in one commit, together with the state they own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from headrace.base.interrupts import committed
from headrace.base.parquet_files import write_parquet
from headrace.base.wording import counted
from headrace.catalog import KINDS, Catalog, FileSource, Relation, Stream, Table, check_names, numbered, to_json
from headrace.errors import CatalogError, NotYetSupported, Position, SqlError
from headrace.keep.family import Family, family_of
from headrace.keep.keeper import Keeper
from headrace.keep.kept import Kept
from headrace.plan.nodes import Node
from headrace.rings.layout import Layout
from headrace.runtime import Runtime
from headrace.settings import memory_bytes
from headrace.sql import statements as s
from headrace.store import Transaction, writing
from headrace.table import files as file_tables
from headrace.table import rows as tables
from headrace.types import MAP_HINT, VOID, Field, Schema, arrow_schema

R = TypeVar("R", bound=Relation)


class Definer:
    """Makes and drops relations."""

    def __init__(self, runtime: Runtime, keeper: Keeper) -> None:
        self._runtime = runtime
        self._keeper = keeper

    def create(self, statement: s.Create) -> str:
        with self._runtime.tables_lock:
            if self.exists(statement):
                return f"{statement.name} exists already"
            if (family := family_of(statement)) is not None:
                return self._create_kept(family, statement)
            relation: Relation
            if isinstance(statement, s.CreateStream):
                relation = _stream(statement)
            elif not isinstance(statement, s.CreateTable):
                raise AssertionError(f"nobody makes {type(statement).__name__}")
            elif statement.files is not None:
                return self._create_over_files(statement, statement.files)
            else:
                key = {k.lower() for k in statement.primary_key}
                relation = Table(
                    statement.name, statement.columns, tuple(c.name for c in statement.columns if c.name.lower() in key)
                )
            relation = self._numbered(relation)

            def work(tx: Transaction) -> None:
                for ref in relation.owns.values():
                    tx.create_relation(ref, tables.tail_schema(relation))

            try:
                if isinstance(relation, Stream) and relation.buffer is not None:
                    self._runtime.rings.open(relation)  # first: there may be no room for it
                self._define(relation, work, at=statement.position)
            except BaseException:
                self._runtime.rings.drop(relation.name)
                raise
            return f"{relation.kind} {relation.name} created"

    def exists(self, statement: s.Create) -> bool:
        """Whether the name is taken; an error unless the statement says IF NOT EXISTS."""
        if statement.if_not_exists:
            return self._runtime.catalog.find(statement.name) is not None
        self._runtime.catalog.require_free(statement.name, statement.position)
        return False

    def create_filled(self, table: Table, rows: pa.Table, at: Position) -> str:
        """A table and its first rows, in one commit."""
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

        try:
            if file is not None:
                with writing(file):
                    write_parquet(rows, file)
            self._define(table, work, at=at)
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

        self._define(table, work, at=statement.position)
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
                names = ", ".join(v.name for v in catalog.dependents(relation.name))
                raise CatalogError(
                    "RELATION_IN_USE",
                    f"{relation.name} is read by {names}",
                    position=statement.position,
                    hint=f"drop {names} first, or write DROP … CASCADE to drop all that reads it",
                )
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

        def work(tx: Transaction) -> None:
            for relation in relations:
                tx.drop(relation.name)
                tx.forget_count(relation.number)
                for ref in relation.owns.values():
                    tx.drop_relation(ref)

        def left() -> None:
            for one in kept:
                self._keeper.leave(one)

        self._commit(catalog, work, f"DROP {relations[-1].name}", left=left, gone=relations)
        for relation in relations:
            if relation.is_stream:
                with self._runtime.tidying.after(f"removing the buffer of {relation.name}"):
                    self._runtime.rings.drop(relation.name)
        for one in kept:
            self._keeper.forget(one)

    # What is kept

    def _create_kept(self, family: Family, statement: s.Create) -> str:
        found, plan = family.defined(self._keeper, statement, self._runtime.analyzer())
        relation = self._numbered(found)
        if plan is None:
            self._define(relation, lambda tx: None, at=statement.position)
            return f"{relation.kind} {relation.name} created"
        owns = {role: self._runtime.store.new_number() for role in family.holds(plan)}
        relation = replace(relation, owns=owns)
        with family.begun(self._keeper, relation, plan) as kept:
            begin = partial(self._keeper.found, kept=kept)
            self._define(relation, begin, partial(self._keeper.enter, kept), at=statement.position)
        return family.created(kept)

    def _numbered(self, relation: R) -> R:
        """The relation with a number, which makes what it names certain from here on."""
        reads = (self._runtime.catalog.get(name) for name in relation.reads)
        return numbered(relation, self._runtime.store.new_number(), reads)

    def restart(self, name: str) -> str:
        """Begin a kept relation again, in one commit: its tables are read anew and its states emptied.

        Inserts acknowledged before it are gone from it, those after it count: state rows
        computed before it are void, as after any change of definitions.
        """
        with self._runtime.tables_lock:
            old: Kept = self._keeper.get(name)
            relation, family = old.relation, self._keeper.family(old.relation)
            with family.begun(self._keeper, relation, family.plan_of(old)) as new:

                def work(tx: Transaction) -> None:
                    for ref in relation.owns.values():
                        tx.drop_relation(ref)
                    tx.forget_count(relation.number)
                    self._keeper.found(tx, new)

                newer = self._runtime.catalog.with_relation(relation)
                label = f"REFRESH {relation.kind.upper()} {relation.name} RESTART"
                self._commit(newer, work, label, partial(self._keeper.enter, new))
            self._keeper.forget(old)
        return family.restarted(new)

    # Commits

    def _define(
        self,
        relation: Relation,
        work: Callable[[Transaction], Any],
        entering: Callable[[], None] = lambda: None,
        *,
        at: Position | None,
    ) -> None:
        check_names(relation, at)
        catalog = self._runtime.catalog.with_relation(relation)

        def all_of_it(tx: Transaction) -> None:
            tx.put(relation.name, relation.kind, to_json(relation))
            work(tx)

        label = f"CREATE {relation.kind.upper()} {relation.name}"
        self._commit(catalog, all_of_it, label, entering, made=(relation,))

    def _commit(
        self,
        catalog: Catalog,
        work: Callable[[Transaction], Any],
        label: str,
        entering: Callable[[], None] = lambda: None,
        left: Callable[[], None] = lambda: None,
        *,
        made: Sequence[Relation] = (),
        gone: Sequence[Relation] = (),
    ) -> None:
        """Commit a change of definitions. From the moment the writer has it, state rows computed
        under the older catalog are refused (:class:`~headrace.stream.intake.StaleCatalog`).

        When it is durable, what is ``entering`` is made known, then the new catalog, and then what has ``left`` is
        forgotten. The writer does it before it answers: no interrupt of the caller comes between what is stored and
        what this process knows."""
        before = self._runtime.writer_version

        def on_writer(tx: Transaction) -> int:
            work(tx)
            self._runtime.writer_version = catalog.version
            return tx.epoch

        def show(epoch: int) -> None:
            entering()
            self._runtime.catalog = catalog
            self._runtime.indexes.keep_only(catalog.numbers)
            self._runtime.untold += [*((r.name, r, epoch) for r in made), *((r.name, None, epoch) for r in gone)]
            left()

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
