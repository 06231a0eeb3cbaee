"""Indexes of tables: from the hash of a key to the places of its rows. The primary key is one, not a scan; what views
look up rows by when something else changes (``plan/lookups.py``) are others, shared by all of them.

Each is in memory, of one epoch, and made when it is first needed; a table that is large waits for the second need since
the database was opened, for making it takes longer than one scan. Each commit that changes the table's rows enters
what it changed (``changing.py:commit``), once it is in. What is found by a hash may be of another key: the plan's own
condition is asked again of the rows found, and an insert that seems to break the key is judged by a query.

Where there is no index - no memory for it (``state_memory``), no key, other conditions - tables are scanned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.base.native import native_batches, native_connection, native_query
from headrace.base.parquet_files import ROW_NUMBER, footer_of, native_scan, open_parquet
from headrace.catalog import Table
from headrace.catalog.table import FILE, ROW
from headrace.engine import key_index
from headrace.engine.columns import is_key
from headrace.engine.key_index import (
    Array,
    Busy,
    Columns,
    Following,
    HeldIndex,
    Keyed,
    KeyIndex,
    Move,
    Named,
    Newer,
    bytes_for,
    hashes_of,
)
from headrace.engine.native_sql import native
from headrace.engine.plan_sql import quote_native
from headrace.plan.exprs import Expr, Literal
from headrace.plan.key_reads import Keys
from headrace.runtime import Runtime
from headrace.store import Snapshot, Transaction
from headrace.store.format import literal
from headrace.store.reading import Reading
from headrace.table import rows as tables
from headrace.types import Type, arrow_schema

SMALL = 262_144
"""Rows a table may have to get its index at first need."""
FEW = 4_096
"""Rows whose numbers stand in a query's text."""


# Making one


def touched(reading: Reading, table: Table) -> int:
    """The epoch that last changed rows of a table, or their places."""
    return max(reading.last_change(table.number), reading.rewritten(table.number))


def key_columns(table: Table) -> Columns:
    """What the index of a table's primary key is by."""
    return tuple(table.stored_name(k) for k in table.primary_key)


def held(
    runtime: Runtime, snapshot: Snapshot, table: Table, columns: Columns | None = None, *, eager: bool = False
) -> HeldIndex | None:
    """A table's index as of a snapshot, made if need be; None if there is none. Raises ``Newer``.

    By its primary key, if not told by which of its columns. ``eager`` says that the first need of it is not the last.
    """
    columns = key_columns(table) if columns is None else columns
    indexes, epoch, named = runtime.indexes, touched(snapshot, table), (table.number, columns)
    with indexes.changed:
        found = indexes.exact(named, epoch)
    if found is not None or runtime.store.batch is not None:
        return found  # what a batch has changed may come to nothing
    rows = rows_at_most(snapshot, table)
    if (
        not all(map(is_key, types_of(table, columns).values()))
        or not _is_due(runtime, named, rows, eager)
        or ROW not in snapshot.schema(table.number).names
    ):
        return None
    try:
        with indexes.building(named) as hand_over:
            hand_over(_made(snapshot, table, columns, rows))
    except Busy:
        return None
    with indexes.changed:
        return indexes.exact(named, epoch)


def _is_due(runtime: Runtime, named: Named, rows: int, eager: bool) -> bool:
    indexes = runtime.indexes
    if bytes_for(rows) > indexes.room():
        return False
    with indexes.changed:
        indexes.asked[named] += 1
        return rows <= SMALL or indexes.asked[named] > 1 or eager


def rows_at_most(snapshot: Snapshot, table: Table) -> int:
    """At least as many rows as the table has."""
    return snapshot.rows(table.number) + sum(s.rows for s in snapshot.manifest(table.number))


def about(runtime: Runtime, snapshot: Snapshot, table: Table) -> int:
    """The same, counted once for each epoch that changes the table."""
    epoch, known = touched(snapshot, table), runtime.indexes.sizes.get(table.number)
    if known is None or known[0] != epoch or snapshot.is_draft:
        known = epoch, rows_at_most(snapshot, table)
        if not snapshot.is_draft:
            runtime.indexes.sizes[table.number] = known
    return known[1]


def _made(snapshot: Snapshot, table: Table, columns: Columns, rows: int) -> HeldIndex:
    files = [path.name for path in snapshot.segments(table.number)]
    made = HeldIndex(touched(snapshot, table), columns, KeyIndex(rows), files)
    listed = ", ".join(["''", *(literal(file) for file in made.files)])
    called = {table.lies(c).name: c.name for c in table.columns}
    names = ", ".join(quote_native(called[k]) for k in columns)
    source = tables.source(snapshot, table, [called[k] for k in columns], placed=True)
    types = list(types_of(table, columns).values())
    text = f"SELECT list_position([{listed}], {FILE}) AS f, {ROW} AS r, {names} FROM {source}"
    for batch in native_batches(snapshot.cursor, text, 262_144):
        files, numbers = (batch.column(i).to_numpy() for i in (0, 1))
        places = np.where(files == 1, ~numbers, (files.astype(np.int64) - 2 << key_index.ROW_BITS) | numbers)
        keys = pa.Table.from_batches([batch.select(range(2, batch.num_columns))])
        made.index.enter(hashes_of(types, keys), places)
    return made


def can_have(table: Table) -> bool:
    """Whether a table can have an index of its primary key."""
    return bool(table.primary_key) and can_have_by(table, key_columns(table))


def can_have_by(table: Table, columns: Columns) -> bool:
    """Whether a table can have an index by some of its columns."""
    return table.files is None and all(map(is_key, types_of(table, columns).values()))


def types_of(table: Table, columns: Columns | None = None) -> dict[str, Type]:
    """The types of columns of a table, by their names in the store; of its primary key, if not told of which."""
    wanted = key_columns(table) if columns is None else columns
    every = {table.lies(c).name: c.type for c in table.columns}
    return {name: every[name] for name in wanted}


def why_none(runtime: Runtime, snapshot: Snapshot, table: Table) -> str | None:
    """Why keys of a table are looked for by a scan, for EXPLAIN; None if its index is there or would be made."""
    others = [field.type.sql for field in table.columns if field.name in table.primary_key and not is_key(field.type)]
    if others:
        return f"no index over keys of type {others[0]}"
    if (table.number, key_columns(table)) in runtime.indexes.held or bytes_for(
        rows_at_most(snapshot, table)
    ) <= runtime.indexes.room():
        return None
    return "no memory for an index (state_memory)"


# Rows by key


@dataclass(frozen=True)
class Found:
    """Rows of a table as native SQL, and the Arrow tables it reads by name."""

    sql: str
    named: Mapping[str, pa.Table]
    rows: pa.Table | None = None
    """The same rows, if they are at hand: in the order of the table's columns, without their places."""


def hashes_asked(table: Table, keys: Keys, zone: str) -> Array:
    """The hashes of keys that a plan asks for. What cannot be evaluated is an error of the native engine."""
    types = list(types_of(table).values())
    arrays = [_constants([key[i] for key in keys], type, zone) for i, type in enumerate(types)]
    return np.unique(hashes_of(types, pa.table(arrays, names=list(table.primary_key))))


def hashes_given(table: Table, given: pa.Table, columns: Columns | None = None) -> Array:
    """The hashes of keys in a table's columns."""
    return np.unique(hashes_of(list(types_of(table, columns).values()), given))


def _constants(values: Sequence[Expr], type: Type, zone: str) -> pa.ChunkedArray:
    if all(isinstance(v, Literal) and v.type == type for v in values):
        return pa.chunked_array([pa.array([v.value for v in values if isinstance(v, Literal)], type.arrow)])
    texts = [f"(CAST({native(v, lambda column: column.name, zone=zone)} AS {type.duckdb}))" for v in values]
    with native_connection() as connection:
        return native_query(connection, f"SELECT v FROM (VALUES {', '.join(texts)}) AS given(v)", {}).column(0)


def rows_of(
    runtime: Runtime,
    snapshot: Snapshot,
    table: Table,
    hashes: Array,
    fields: Sequence[str],
    *,
    placed: bool = False,
    columns: Columns | None = None,
    eager: bool = False,
) -> Found | None:
    """The rows that have the keys of these hashes, and perhaps some others; None if all are to be read.

    ``eager``, if rows are looked up so again and again: then what that takes is kept in memory from the first time on.
    Raises ``Newer`` where the index is of a later epoch.
    """
    index = held(runtime, snapshot, table, columns, eager=eager)
    if index is None:
        return None
    return found(runtime, snapshot, table, index, hashes, fields, placed=placed, eager=eager)


def found(
    runtime: Runtime,
    snapshot: Snapshot,
    table: Table,
    index: HeldIndex,
    hashes: Array,
    fields: Sequence[str],
    *,
    placed: bool,
    eager: bool = False,
) -> Found | None:
    """The rows of keys with these hashes."""
    with runtime.indexes.changed:
        if index.epoch != touched(snapshot, table):
            raise Newer
        places = index.index.find(np.unique(hashes))[1]
        by_file = index.rows(places)
    named: dict[str, pa.Table] = {}
    at: dict[str, str] = {}
    here: dict[str, pa.Table] = {}
    paths = {path.name: path for path in snapshot.segments(table.number)} if any(by_file) else {}
    for number, (file, rows) in enumerate(by_file.items()):
        name = f"__at_{table.number}_{number}"
        if not file:
            at[file] = _among(snapshot.table(table.number), ROW, rows, name, named)
        elif (few := _taken(runtime, snapshot, table, paths[file], rows, fields, eager)) is not None:
            named[name], at[file], here[file] = few, name, few
        else:
            at[file] = _among(native_scan([paths[file]], numbered=True), ROW_NUMBER, rows, name, named)
    found = Found(tables.source(snapshot, table, fields, placed=placed, at=at), named)
    if placed or here.keys() != at.keys():
        return found
    wanted = tuple(f for f in table.columns if f.name in fields)
    parts = [tables.of_fields(snapshot, table, paths[file], rows, wanted) for file, rows in here.items()]
    return replace(found, rows=pa.concat_tables(parts or [arrow_schema(wanted).empty_table()]))


def _taken(
    runtime: Runtime, snapshot: Snapshot, table: Table, file: Path, rows: Array, fields: Sequence[str], eager: bool
) -> pa.Table | None:
    """Rows of a segment with their numbers; None if a scan takes less time, and there is no memory for more.

    Whole columns are decoded only for those who come again: once, that takes longer than a scan.
    """
    names = _there(snapshot, table, file, fields)
    whole = runtime.columns.of(table.number, file, names)
    if whole is None:
        few = _read(file, rows, names)
        if few is not None or not eager or len(rows) * _MANY > _footer(file)[0].num_rows:
            return few
        runtime.columns.keep_only(table.number, [path.name for path in snapshot.segments(table.number)])
        whole = runtime.columns.load(table.number, file, names)
    return None if whole is None else whole.take(pa.array(rows)).append_column(ROW_NUMBER, pa.array(rows))


def _there(snapshot: Snapshot, table: Table, file: Path, fields: Sequence[str]) -> list[str]:
    """What a segment calls those of the fields that it has."""
    lie = tables.in_segment(snapshot, table, file)
    found = [there for name in fields if isinstance(there := lie[name], str)]
    return found or [table.stored_name(name) for name in table.primary_key]


def _among(relation: str, column: str, rows: Array, name: str, named: dict[str, pa.Table]) -> str:
    """Those rows of a relation that have these numbers."""
    if len(rows) <= FEW:
        return f"(SELECT * FROM {relation} WHERE {column} IN ({', '.join(map(str, rows.tolist()))}))"
    named[name] = pa.table({"n": rows})
    return f"(SELECT s.* FROM {relation} AS s SEMI JOIN {name} AS d ON d.n = s.{column})"


@lru_cache(maxsize=256)
def _footer(file: Path) -> tuple[pq.FileMetaData, Array]:
    """A segment's footer, and where its row groups begin. Segments never change, nor do their names come back."""
    footer = footer_of(file)
    sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    return footer, np.concatenate(([0], np.cumsum(sizes)))


_MANY = 8
"""Of fewer rows for one that is wanted, whole columns are not worth their memory."""
_BATCH = 4_096
_VALUE, _SKIPPED = 10, 2
"""About the nanoseconds that decoding a value takes here, and passing by a row takes the native engine."""


def _read(file: Path, rows: Array, fields: Sequence[str]) -> pa.Table | None:
    """Rows of a segment with their numbers, by its row groups; None if a scan takes less time."""
    footer, starts = _footer(file)
    groups = np.unique(np.searchsorted(starts, rows, "right") - 1)
    decoded = int((starts[groups + 1] - starts[groups]).sum()) * max(len(fields), 1)
    if decoded * _VALUE > int(starts[-1]) * _SKIPPED + 2_000_000:
        return None
    parts = []
    with open_parquet(file, footer) as read:
        for group in groups.tolist():
            here = np.sort(rows[(rows >= starts[group]) & (rows < starts[group + 1])])
            at = int(starts[group])
            for batch in read.iter_batches(_BATCH, row_groups=[group], columns=list(fields), use_threads=False):
                inside = here[(here >= at) & (here < at + len(batch))]
                if len(inside):
                    part = pa.Table.from_batches([batch]).take(pa.array(inside - at))
                    parts.append(part.append_column(ROW_NUMBER, pa.array(inside)))
                at += len(batch)
                if at > here[-1]:
                    break  # what comes after the last of them is not decoded
    return pa.concat_tables(parts)


# Keeping it exact


class Entering:
    """A change of a table on its way to be committed, and into the index if there is one.

    Whether it breaks the key the index knows before the commit; only what seems to is asked for by a query.
    """

    def __init__(self, table: Table, following: Following, came: Sequence[Came], *, sure: bool = False) -> None:
        self._table = table
        self._following = following
        self._came = came
        self._key = key_columns(table)
        self._types = {table.lies(c).name: c.type for c in table.columns}
        self.is_on = False
        """Whether there is an index, or one is made just now."""
        self._sure = sure
        self._suspects: list[pa.Table] = [] if sure else [self._keys(part.rows) for part in came]
        self._keyed: list[Keyed] = []

    def _keys(self, rows: pa.Table) -> pa.Table:
        return rows.select(list(self._key)).rename_columns(list(self._table.primary_key))

    def judge(self, index: HeldIndex | None, gone: Gone) -> None:
        """Look the new keys up, before any of the change is in. Hold the indexes."""
        self.is_on = True
        following = self._following
        following.all_go, following.files = gone.all, gone.files
        leaving = [] if gone.all else list(_by_file(gone.places))
        keyed = Keyed(gone.rows, self._types, gone.places.num_rows)
        for file, at, rows in leaving:
            if file not in gone.files:
                following.moves.append(Move(keyed.take(at), file, rows, False))
        self._keyed = [Keyed(part.rows, self._types, part.rows.num_rows) for part in self._came]
        new = [keyed for keyed, part in zip(self._keyed, self._came, strict=True) if not part.old]
        if index is None or not new or self._sure:
            return
        hashes = np.concatenate([part.hashes(self._key) for part in new])
        suspect = repeated(hashes)
        if not gone.all:
            left = [index.places(file, rows) for file, _, rows in leaving]
            rows, places = index.index.find(hashes)
            suspect[rows[~np.isin(places, np.concatenate([*left, np.empty(0, np.int64)]))]] = True
        keys = pa.concat_tables([self._keys(part.rows) for part in self._came if not part.old])
        self._suspects = [keys.filter(pa.array(suspect))]
        if suspect.any():  # what is left of segments that go is not there when the query asks: it comes, too
            self._suspects += [self._keys(part.rows) for part in self._came if part.old]

    def check(self, tx: Transaction) -> None:
        """An error if the table would have two rows of one key."""
        tables.check_key(tx, self._table, self._suspects)

    def tail(self, start: int, flushed: tables.Flushed | None) -> None:
        """The rows that are no file are in the tail, numbered from here on, and what was there may be a segment now."""
        if not self.is_on:
            return
        moves = self._following.moves
        for part, keyed in zip(self._came, self._keyed, strict=True):
            if not part.file:
                moves.append(Move(keyed, "", np.arange(start, start + part.rows.num_rows), True))
        if flushed is not None:
            self.flushed(flushed)

    def flushed(self, flushed: tables.Flushed) -> None:
        """A tail's rows are a segment now."""
        rows = flushed.rows
        if self.is_on and ROW in rows.column_names:
            keyed, numbers = Keyed(rows, self._types, rows.num_rows), rows.column(ROW).to_numpy()
            self._following.moves += [
                Move(keyed, "", numbers, False),
                Move(keyed, flushed.file.name, np.arange(len(numbers)), True),
            ]

    def committed(self, epoch: int | None) -> None:
        """It is in, if it has an epoch."""
        for part, keyed in zip(self._came, self._keyed, strict=True) if self.is_on else ():
            if part.file:
                self._following.moves.append(Move(keyed, part.file, np.arange(part.rows.num_rows), True))
        self._following.epoch = epoch


@dataclass(frozen=True)
class Came:
    """New rows, in the order of their segment, or those for the tail: the columns that indexes are by, as stored."""

    rows: pa.Table
    file: str = ""
    old: bool = False
    """Whether the table had these rows before, in segments that go."""


@dataclass(frozen=True)
class Gone:
    """Rows that go, those columns of them that indexes are by, and their places."""

    rows: pa.Table
    places: pa.Table
    all: bool = False
    files: Collection[str] = ()
    """Segments that go, whose other rows come again in new ones."""

    @staticmethod
    def nothing() -> Gone:
        return Gone(pa.table({}), pa.table({FILE: pa.array([], pa.string()), ROW: pa.array([], pa.int64())}))


@contextmanager
def entering(
    runtime: Runtime, table: Table, came: Sequence[Came], gone: Gone, *, sure: bool = False
) -> Iterator[Entering]:
    """Commit a change in the block; hold ``tables_lock`` since its places were read. ``sure``, if it keeps the key."""
    indexes, number = runtime.indexes, table.number
    if runtime.store.batch is not None:
        # It is in with its batch only: whoever needs the index then finds it out of date.
        yield Entering(table, Following(0), came, sure=sure)
        return
    with runtime.store.glance() as glance:
        before = touched(glance, table)
    with indexes.following(number, before) as following:
        found = Entering(table, following, came, sure=sure)
        if can_have(table) and came and not (gone.all or sure):
            _make(runtime, table, before)
        with indexes.changed:
            index = indexes.held.get((number, key_columns(table)))
            index = index if index is not None and index.epoch == before else None
            if indexes.of(number):
                found.judge(index, gone)
        yield found


def _make(runtime: Runtime, table: Table, epoch: int) -> None:
    indexes, named = runtime.indexes, (table.number, key_columns(table))
    with indexes.changed:
        index = indexes.held.get(named)
        if index is not None and index.epoch != epoch:
            del indexes.held[named]  # a rewrite gave rows other places
            index = None
    if index is None:
        with runtime.store.read() as snapshot, suppress(Newer):
            held(runtime, snapshot, table)


def repeated(hashes: Array) -> Array:
    """Which of them are there more than once."""
    _, which, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    found: Array = counts[which] > 1
    return found


def _by_file(places: pa.Table) -> Iterator[tuple[str, Array, Array]]:
    """The segment, the positions in the table and the numbers of rows, by segment."""
    if not places.num_rows:
        return
    files = places.column(0).combine_chunks().dictionary_encode()
    codes, rows = files.indices.to_numpy(), places.column(1).to_numpy()
    for code, file in enumerate(files.dictionary.to_pylist()):
        at = np.flatnonzero(codes == code)
        yield file, at, rows[at]
