"""How a table's rows change: places that are left out from an epoch on, and rows that are new in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.interrupts import committed
from headrace.base.native import conform, native_batches
from headrace.base.parquet_files import ROW_NUMBER, parquet_chunks, parquet_rows, write_parquet
from headrace.catalog import Table
from headrace.catalog.table import FILE, ROW
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import chunked
from headrace.errors import NotYetSupported
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction, writing
from headrace.table import keys
from headrace.table import rows as tables
from headrace.types import arrow_schema


@dataclass(frozen=True)
class NewFile:
    """A finished segment that no epoch names yet."""

    path: Path
    rows: int


@dataclass(frozen=True)
class TableChange:
    """What one statement changes in a table: rows that go, where they are, and rows that come."""

    places: pa.Table
    """The ``__file`` and ``__row`` of each row that goes."""
    old: pa.Table
    """Those rows: all columns if the table is followed, else at least its primary key."""
    new: pa.Table
    """Rows that come."""
    files: Sequence[NewFile] = ()
    """More of them, in segments that are written already: they go again if the change is not committed."""
    all_go: bool = False
    """Whether all rows go that are there, wherever they are."""

    @staticmethod
    def nothing(table: Table) -> TableChange:
        empty = arrow_schema(table.columns).empty_table()
        places = pa.table({FILE: pa.array([], pa.string()), ROW: pa.array([], pa.int64())})
        return TableChange(places, empty, empty)

    @staticmethod
    def insertion(table: Table, rows: pa.Table) -> TableChange:
        return replace(TableChange.nothing(table), new=rows)

    @staticmethod
    def of_files(table: Table, files: Sequence[NewFile]) -> TableChange:
        return replace(TableChange.nothing(table), files=files)

    @staticmethod
    def replacement(table: Table, rows: pa.Table) -> TableChange:
        return replace(TableChange.insertion(table, rows), all_go=True)

    @property
    def is_empty(self) -> bool:
        return not (self.places.num_rows or self.new.num_rows or self.files or self.all_go)

    def also(self, other: TableChange) -> TableChange:
        """Both."""
        both = [name for name in self.old.column_names if name in other.old.column_names]
        return TableChange(
            _joined([self.places, other.places.rename_columns([FILE, ROW])]),
            _joined([self.old.select(both), other.old.select(both)]),
            _joined([self.new, other.new]),
            (*self.files, *other.files),
            self.all_go or other.all_go,
        )

    def written(self, runtime: Runtime, table: Table) -> TableChange:
        """The same, many new rows as a file."""
        if self.new.num_rows < tables.TAIL_ROWS:
            return self
        file = runtime.store.new_segment(table.number)
        try:
            with writing(file):
                write_parquet(self.new, file)
        except BaseException:
            runtime.store.let_go(file)
            raise
        return replace(self, new=self.new.slice(0, 0), files=(*self.files, NewFile(file, self.new.num_rows)))

    def parts(self, runtime: Runtime, table: Table) -> Iterator[tuple[pa.Table, int]]:
        """Its rows, and how often each counts."""
        if self.all_go:
            yield from ((chunk, -1) for chunk in _chunks(runtime, table))
        yield self.old, -1
        yield self.new, 1
        for file in self.files:
            yield from ((chunk, 1) for chunk in parquet_chunks(file.path))


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([part.cast(parts[0].schema) for part in parts])


def identify(runtime: Runtime, table: Table) -> None:
    """See to it that rows have places: those of a tail from before they had any get some."""
    if any(f.name.lower() in (ROW_NUMBER, FILE, ROW) for f in table.columns):
        name = next(f.name for f in table.columns if f.name.lower() in (ROW_NUMBER, FILE, ROW))
        raise NotYetSupported(
            f"changing rows of a table with a column named {name}", hint="rename the column: CREATE TABLE … AS SELECT"
        )

    def work(tx: Transaction) -> None:
        rows = tx.scan(table.number)
        numbers = pa.array(np.arange(rows.num_rows))
        tx.reshape(table.number, tables.tail_schema(table), rows.append_column(ROW, numbers))

    if table.number in runtime.indexes.held:
        return  # an index is made of places
    with runtime.store.read() as snapshot:
        if ROW in snapshot.schema(table.number).names:
            return
    runtime.store.commit(work, label=f"places for rows of {table.name}")


def check(table: Table, rows: pa.Table) -> None:
    """An error unless the table can hold these rows beside any others."""
    tables.check_not_null(table, rows)


def commit(
    runtime: Runtime,
    table: Table,
    change: TableChange,
    label: str,
    also: Callable[[Transaction], None] = lambda tx: None,
) -> None:
    """Make the change, in one epoch: the one way in which rows of a table come, go or become others.

    Hold ``tables_lock`` since its places were read. ``also`` is done in the same commit.
    """
    try:
        runtime.catalog.require_there(table)
        change = change.written(runtime, table)
        handing = runtime.hand_on(table, partial(change.parts, runtime, table))
        with keys.entering(runtime, table, *_keys(table, change)) as entering:

            def work(tx: Transaction) -> int | None:
                if change.is_empty:
                    tx.unchanged()
                    return None
                if change.all_go:
                    tx.remove_segments(table.number)
                    tx.replace(table.number, tx.schema(table.number).empty_table(), altered=True)
                places = change.places.rename_columns(["file", "row"])
                in_tail = pc.equal(places["file"], "")
                tx.delete(table.number, ROW, places.filter(in_tail)["row"])
                tx.delete_from_segments(table.number, places.filter(pc.invert(in_tail)))
                entering.check(tx)
                for file in change.files:
                    tx.add_segment(table.number, file.path, file.rows)
                    tx.count(table.number, file.rows)
                if change.new.num_rows:
                    entering.tail(*tables.append(runtime, tx, table, change.new))
                handing.add(tx)
                also(tx)
                return tx.epoch

            entering.committed(runtime.store.commit(work, label=label))
    except BaseException:
        for file in change.files:
            runtime.store.let_go(file.path)
        raise
    committed()
    with runtime.tidying.after(f"merging states over {table.name}"):
        handing.after()


def _keys(table: Table, change: TableChange) -> tuple[list[keys.Came], keys.Gone]:
    names = list(table.primary_key)
    came = [keys.Came(change.new.select(names))] if change.new.num_rows else []
    if names:
        came += [keys.Came(parquet_rows(file.path, names), file.path.name) for file in change.files if file.rows]
    return came, keys.Gone(change.old.select(names), change.places, change.all_go)


def insert(runtime: Runtime, table: Table, rows: pa.Table) -> None:
    """Append rows as one epoch; a broken key or NOT NULL changes nothing."""
    check(table, rows)
    with runtime.tables_lock:
        commit(runtime, table, TableChange.insertion(table, rows), f"INSERT INTO {table.name}")


def add_files(runtime: Runtime, table: Table, files: Sequence[NewFile]) -> None:
    """Make written segments part of the table, as one epoch; they go if it fails."""
    with runtime.tables_lock:
        commit(runtime, table, TableChange.of_files(table, files), f"COPY {table.name}")


def flush(runtime: Runtime, table: Table) -> None:
    """Write the tail out, so that other processes can read the whole table from files."""
    with runtime.tables_lock, keys.entering(runtime, table, [], keys.Gone.nothing(table)) as entering:

        def work(tx: Transaction) -> int | None:
            if tx.query(f"SELECT count(*) AS n FROM {tx.table(table.number)}").column("n")[0].as_py() == 0:
                tx.unchanged()
                return None
            entering.flushed(tables.flush(runtime, tx, table))
            return tx.epoch

        entering.committed(runtime.store.commit(work, label=f"flush {table.name}"))


def _chunks(runtime: Runtime, table: Table) -> Iterator[pa.Table]:
    """All rows of a table, some at a time."""
    with runtime.store.read() as snapshot:
        names = ", ".join(quote_native(f.name) for f in table.columns)
        text = f"SELECT {names} FROM {tables.source(snapshot, table)}"
        wanted = arrow_schema(table.columns)
        yield from (conform(chunk, wanted) for chunk in chunked(native_batches(snapshot.cursor, text, 65_536)))


def count(snapshot: Snapshot, table: Table) -> int:
    """How many rows a table has."""
    in_files = sum(s.rows for s in snapshot.manifest(table.number)) - sum(snapshot.deleted(table.number).values())
    return snapshot.rows(table.number) + in_files
