"""How a table's rows change: places that are left out from an epoch on, and rows that are new in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.interrupts import committed
from headrace.base.native import conform, native_batches
from headrace.base.parquet_files import ROW_NUMBER, write_parquet
from headrace.catalog import Table
from headrace.catalog.table import FILE, ROW
from headrace.engine.plan_sql import quote_native
from headrace.engine.work import chunked
from headrace.errors import NotYetSupported
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction, writing
from headrace.table import rows as tables
from headrace.types import arrow_schema


@dataclass(frozen=True)
class TableChange:
    """What one statement changes in a table, net: rows that go, where they are, and rows that come."""

    places: pa.Table
    """The ``__file`` and ``__row`` of each row that goes."""
    old: pa.Table
    """Those rows."""
    new: pa.Table

    @staticmethod
    def nothing(table: Table) -> TableChange:
        empty = arrow_schema(table.columns).empty_table()
        places = pa.table({FILE: pa.array([], pa.string()), ROW: pa.array([], pa.int64())})
        return TableChange(places, empty, empty)

    @staticmethod
    def insertion(table: Table, rows: pa.Table) -> TableChange:
        nothing = TableChange.nothing(table)
        return TableChange(nothing.places, nothing.old, rows)

    def also(self, other: TableChange) -> TableChange:
        """Both."""
        return TableChange(
            _joined([self.places, other.places.rename_columns([FILE, ROW])]),
            _joined([self.old, other.old]),
            _joined([self.new, other.new]),
        )


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

    with runtime.store.read() as snapshot:
        if ROW in snapshot.schema(table.number).names:
            return
    runtime.store.commit(work, label=f"places for rows of {table.name}")


def check(table: Table, rows: pa.Table) -> None:
    """An error unless the table can hold these rows beside any others."""
    tables.check_not_null(table, rows)


@dataclass(frozen=True)
class Beside:
    """What else the epoch of a change is for."""

    work: Callable[[Transaction], bool]
    """Done first; False if it is all there already, and there is nothing to commit."""
    keeps_keys: bool = False
    """Whether rows were found by their primary keys, so that none can be there twice."""
    settled: Callable[[], None] = lambda: None
    """Called by the writer when it is durable."""


def commit(runtime: Runtime, table: Table, change: TableChange, label: str, beside: Beside | None = None) -> None:
    """Make the change, in one epoch. Hold ``tables_lock`` since its places were read."""
    with _segment(runtime, table, change.new) as file:

        def work(tx: Transaction) -> None:
            nothing = not change.places.num_rows and not change.new.num_rows
            if nothing if beside is None else not beside.work(tx):
                tx.unchanged()
                return
            places = change.places.rename_columns(["file", "row"])
            in_tail = pc.equal(places["file"], "")
            tx.delete(table.number, ROW, places.filter(in_tail)["row"])
            tx.delete_from_segments(table.number, places.filter(pc.invert(in_tail)))
            if beside is None or not beside.keeps_keys:
                tables.check_key(tx, table, [change.new])
            _add(runtime, tx, table, change.new, file)
            handing.add(tx)

        handing = runtime.hand_on(table, lambda: [(change.old, -1), (change.new, 1)])
        runtime.store.commit(work, label=label, settled=lambda _: beside.settled() if beside is not None else None)
        committed()
        with runtime.tidying.after(f"merging states over {table.name}"):
            handing.after()


def replace_all(runtime: Runtime, table: Table, rows: pa.Table, label: str) -> None:
    """Put rows in the place of all."""
    with _segment(runtime, table, rows) as file:

        def work(tx: Transaction) -> None:
            tx.remove_segments(table.number)
            tx.replace(table.number, tx.schema(table.number).empty_table(), altered=True)
            tables.check_key(tx, table, [rows])
            _add(runtime, tx, table, rows, file)
            handing.add(tx)

        def parts() -> Iterator[tuple[pa.Table, int]]:
            yield from ((chunk, -1) for chunk in _chunks(runtime, table))
            yield rows, 1

        handing = runtime.hand_on(table, parts)
        runtime.store.commit(work, label=label)
        committed()
        with runtime.tidying.after(f"merging states over {table.name}"):
            handing.after()


def _add(runtime: Runtime, tx: Transaction, table: Table, rows: pa.Table, file: Path | None) -> None:
    if file is not None:
        tx.add_segment(table.number, file, rows.num_rows)
        tx.count(table.number, rows.num_rows)
    elif rows.num_rows:
        tables.append(runtime, tx, table, rows)


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


@contextmanager
def _segment(runtime: Runtime, table: Table, rows: pa.Table) -> Iterator[Path | None]:
    """Many rows, written as a segment that goes again if the block raises; None for few."""
    if rows.num_rows < tables.TAIL_ROWS:
        yield None
        return
    file = runtime.store.new_segment(table.number)
    try:
        with writing(file):
            write_parquet(rows, file)
        yield file
    except BaseException:
        runtime.store.let_go(file)
        raise
