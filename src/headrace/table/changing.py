"""How a table's rows change: places that are left out from an epoch on, and rows that are new in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.native import conform, native_batches
from headrace.base.parquet_files import ROW_NUMBER, native_scan, write_parquet
from headrace.catalog import Table
from headrace.catalog.table import FILE, ROW
from headrace.engine.work import chunked
from headrace.errors import NotYetSupported
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction, writing
from headrace.table import constraints, history, keys, rewriting
from headrace.table import rows as tables
from headrace.table.history import Recording
from headrace.table.net import cancelled, names_of, summed, times
from headrace.table.rows import NewFile
from headrace.types import arrow_schema


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
    is_net: bool = False
    """Whether it is known that no row that goes is equal to one that comes."""
    keeps_keys: bool = False
    """Whether it is known that no two rows have one primary key afterwards if none had before."""

    @staticmethod
    def nothing(table: Table) -> TableChange:
        empty = arrow_schema(table.columns).empty_table()
        places = pa.table({FILE: pa.array([], pa.string()), ROW: pa.array([], pa.int64())})
        return TableChange(places, empty, empty, keeps_keys=True)

    @staticmethod
    def insertion(table: Table, rows: pa.Table) -> TableChange:
        return replace(TableChange.nothing(table), new=rows, keeps_keys=False)

    @staticmethod
    def of_files(table: Table, files: Sequence[NewFile]) -> TableChange:
        return replace(TableChange.nothing(table), files=files, keeps_keys=False)

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
            keeps_keys=self.keeps_keys and other.keeps_keys,
        )

    def net(self, runtime: Runtime, table: Table) -> TableChange:
        """The same, without the rows at hand that would go and come again."""
        if self.is_net:
            return self
        if self.old.num_columns < len(table.columns):
            return replace(self, is_net=True)  # nobody asks for more than places
        alone = not (self.all_go and (self.new.num_rows or self.files)) and not (self.old.num_rows and self.files)
        found = cancelled(runtime, table, self.old, self.new)
        if found is None:
            return replace(self, is_net=alone)
        old, new = _all_but(self.old.num_rows, found[0]), _all_but(self.new.num_rows, found[1])
        return replace(self, places=self.places.take(old), old=self.old.take(old), new=self.new.take(new), is_net=alone)

    @property
    def has_many(self) -> bool:
        """Whether the new rows are too many for a tail."""
        return bool(self.new.num_rows >= tables.TAIL_ROWS)

    def written(self, runtime: Runtime, table: Table) -> TableChange:
        """The same, its new rows as a file."""
        file = runtime.store.new_segment(table.number)
        try:
            with writing(file):
                write_parquet(tables.as_stored(table, self.new), file)
        except BaseException:
            runtime.store.let_go(file)
            raise
        written = NewFile(file, self.new.num_rows, keys=self.new.select(list(table.primary_key)))
        return replace(self, new=self.new.slice(0, 0), files=(*self.files, written))

    def parts(self, runtime: Runtime, table: Table) -> Iterator[tuple[pa.Table, int]]:
        """Its rows, and how often each counts: those that go, then those that come."""
        yield from ((chunk, -1) for chunk in self.gone(runtime, table))
        yield from ((chunk, 1) for chunk in self.come(runtime, table))

    def gone(self, runtime: Runtime, table: Table) -> Iterator[pa.Table]:
        """The rows that go, some at a time."""
        if not self.is_net:
            yield from self._summed(runtime, table, -1)
        elif self.all_go:
            with runtime.store.read() as snapshot:
                yield from tables.chunks(snapshot, table)
        else:
            yield self.old

    def come(self, runtime: Runtime, table: Table) -> Iterator[pa.Table]:
        """The rows that come, some at a time."""
        if not self.is_net:
            yield from self._summed(runtime, table, 1)
            return
        yield self.new
        for file in self.files:
            yield from tables.segment_chunks(table, file.path)

    def _summed(self, runtime: Runtime, table: Table, sign: int) -> Iterator[pa.Table]:
        """The rows of which more go than come, or more come than go."""
        names = names_of(table.columns)
        with runtime.store.read() as snapshot:
            old = tables.source(snapshot, table) if self.all_go else "old_rows"
            parts = [f"SELECT {names}, -1 AS __weight FROM {old}", f"SELECT {names}, 1 AS __weight FROM new_rows"]
            if self.files:
                stored = tables.selected(tables.in_store(table), [f.name for f in table.columns])
                parts.append(f"SELECT {stored}, 1 AS __weight FROM {native_scan([f.path for f in self.files])}")
            weighed = summed(table.columns, f"({' UNION ALL '.join(parts)})")
            text = f"SELECT * FROM {times(table.columns, weighed, sign)}"
            given = {"old_rows": self.old, "new_rows": self.new}
            wanted = arrow_schema(table.columns)
            batches = native_batches(snapshot.cursor, text, 65_536, given)
            yield from (conform(chunk, wanted) for chunk in chunked(batches))


def _all_but(count: int, numbers: pa.Array) -> pa.Array:
    """The numbers of rows that are not among these."""
    left = np.ones(count, bool)
    left[numbers.to_numpy()] = False
    return pa.array(np.flatnonzero(left))


def _joined(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([part.cast(parts[0].schema) for part in parts])


def needed(runtime: Runtime, table: Table) -> list[str]:
    """The columns of rows that go whose values somebody needs: whoever follows the table, or else its index. Hold
    ``tables_lock``."""
    followed = runtime.is_followed(table) or history.is_kept(table)
    return [f.name for f in table.columns if followed or f.name in table.primary_key]


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

    if runtime.indexes.of(table.number):
        return  # an index is made of places
    with runtime.store.read() as snapshot:
        if ROW in snapshot.schema(table.number).names:
            return
    runtime.store.commit(work, label=f"places for rows of {table.name}")


@dataclass(frozen=True)
class Beside:
    """What else the epoch of a change is for."""

    work: Callable[[Transaction], bool]
    """Done first; False if it is all there already, and there is nothing to commit."""
    settled: Callable[[], None] = lambda: None
    """Called by the writer when it is durable."""


def commit(runtime: Runtime, table: Table, change: TableChange, label: str, beside: Beside | None = None) -> None:
    """Make the change, in one epoch: the one way in which rows of a table come, go or become others.

    Rows that would go and come again stay where they are. Hold ``tables_lock`` since its places were read.
    """
    recording: Recording | None = None
    melted = rewriting.Melted(change.places)
    try:
        runtime.catalog.require_there(table)
        change = change.net(runtime, table)
        written = runtime.worker.pool.submit(change.written, runtime, table) if change.has_many else None
        try:
            melted = rewriting.melt(runtime, table, change.places)
        finally:
            change = written.result() if written is not None else change
        if history.is_kept(table) and not change.is_empty:
            recording = Recording(runtime, table, label)
            _record(runtime, table, change, recording)

        handing = runtime.hand_on(table, partial(change.parts, runtime, table))
        with keys.entering(runtime, table, *_keys(runtime, table, change, melted), sure=change.keeps_keys) as entering:

            def work(tx: Transaction) -> tuple[int, int | None] | None:
                if change.is_empty if beside is None else not beside.work(tx):
                    tx.unchanged()
                    return None
                if recording is not None:
                    recording.add(tx)
                if change.all_go:
                    tx.remove_segments(table.number)
                    tx.replace(table.number, tx.schema(table.number).empty_table(), altered=True)
                if melted.names:
                    tx.remove_segments(table.number, files=melted.names)
                places = melted.places.rename_columns(["file", "row"])
                in_tail = pc.equal(places["file"], "")
                tx.delete(table.number, ROW, places.filter(in_tail)["row"])
                gone = places.filter(pc.invert(in_tail))
                tx.delete_from_segments(table.number, gone)
                entering.check(tx)
                for file in (*change.files, *melted.files):
                    tx.add_segment(table.number, file.path, file.rows)
                    tx.count(table.number, 0 if file.old else file.rows)
                grown = bool(change.files or melted.files)
                if change.new.num_rows:
                    start, flushed = tables.append(runtime, tx, table, change.new)
                    entering.tail(start, flushed)
                    grown = grown or flushed is not None
                handing.add(tx)
                return tx.epoch, 0 if grown else gone.num_rows or None

            def settled(done: tuple[int, int | None] | None) -> None:
                if done is not None:
                    handing.settled()
                if beside is not None:
                    beside.settled()

            done = runtime.store.commit(work, label=label, settled=settled)
            entering.committed(None if done is None else done[0])
    except BaseException:
        _let_go(runtime, (*change.files, *melted.files), recording)
        raise
    if done is None:
        _let_go(runtime, (*change.files, *melted.files), recording)
        return
    runtime.tidying.then(f"merging states over {table.name}", handing.after)
    if done[1] is not None:
        runtime.tidying.then(f"writing segments of {table.name} anew", partial(rewriting.due, runtime, table, done[1]))


def _let_go(runtime: Runtime, files: Sequence[NewFile], recording: Recording | None) -> None:
    for file in files:
        runtime.store.let_go(file.path)
    if recording is not None:
        recording.let_go()


def _keys(
    runtime: Runtime, table: Table, change: TableChange, melted: rewriting.Melted
) -> tuple[list[keys.Came], keys.Gone]:
    """Of what comes and goes, the columns that indexes of the table are by."""
    wanted = {*keys.key_columns(table), *chain.from_iterable(runtime.indexes.of(table.number))}
    fields = [f for f in table.columns if table.lies(f).name in wanted]
    stored = {f.name: table.lies(f).name for f in fields}

    def of(rows: pa.Table) -> pa.Table:
        there = [name for name in stored if name in rows.column_names]
        return rows.select(there).rename_columns([stored[name] for name in there])

    came = [keys.Came(of(change.new))] if change.new.num_rows else []
    for file in (*change.files, *melted.files) if fields else ():
        if file.rows:
            known = file.keys is not None and set(stored) <= set(file.keys.column_names)
            there = of(file.keys) if known else tables.segment_columns(table, file.path, fields)
            came.append(keys.Came(there, file.path.name, file.old))
    return came, keys.Gone(of(change.old), change.places, change.all_go, melted.names)


def _record(runtime: Runtime, table: Table, change: TableChange, recording: Recording) -> None:
    """Have a change kept: rows that lie in files are not written again."""
    try:
        if change.is_net and change.all_go:
            recording.take_all()
        else:
            recording.went.take(change.gone(runtime, table))
        if change.is_net:
            recording.came.take([change.new])
            for file in change.files:
                recording.came.name(file.path, file.rows)
        else:
            recording.came.take(change.come(runtime, table))
    except BaseException:
        recording.let_go()
        raise


def insert(runtime: Runtime, table: Table, rows: pa.Table, label: str = "") -> None:
    """Append rows as one epoch; a broken key, NOT NULL or CHECK changes nothing."""
    constraints.check(runtime, table, rows)
    with runtime.tables_lock:
        now = _now(runtime, table)
        if now is not table:
            rows = constraints.as_of(now, table, rows)
            constraints.check(runtime, now, rows)
        commit(runtime, now, TableChange.insertion(now, rows), label or f"INSERT INTO {now.name}")


def add_files(runtime: Runtime, table: Table, files: Sequence[NewFile], label: str) -> None:
    """Make written segments part of the table, as one epoch; they go if it fails. Whoever wrote them has looked for
    NULLs; the table's conditions are asked here, where they can be run."""
    with runtime.tables_lock:
        try:
            now = _now(runtime, table)
            if now is not table or now.checks:
                for chunk in chain.from_iterable(tables.segment_chunks(now, file.path) for file in files):
                    constraints.check(runtime, now, chunk)
            commit(runtime, now, TableChange.of_files(now, files), label)
        except BaseException:
            for file in files:
                runtime.store.let_go(file.path)
            raise


def _now(runtime: Runtime, table: Table) -> Table:
    """The table as it is defined now."""
    runtime.catalog.require_there(table)
    now = runtime.catalog.table_at(table.number)
    assert now is not None
    return now


def count(snapshot: Snapshot, table: Table) -> int:
    """How many rows a table has."""
    in_files = sum(s.rows for s in snapshot.manifest(table.number)) - sum(snapshot.deleted(table.number).values())
    return snapshot.rows(table.number) + in_files
