"""A table's history: what each epoch changed, kept for a while (``WITH (keep_changes = '1 day')``).

A *version* is an epoch that changed the table. Its net change lies in two relations that the table owns: what came in
it and what went, each row with the version. Many rows lie in segments; a file that became the table's own is not
written again, both name it, and so is one that goes with all its rows. Where rows lie in the table is nothing to the
history: all that came and went after a version, taken off what is there now, leaves the rows of that version.

A third relation lists the versions with their times. Its first is the oldest that can be read; of its own change
nothing is kept. Others are let go, at a later commit, once they have not been the table for long enough.

A materialized view that takes changes in later reads them from there (:func:`net`). So a table has a history too while
such a view follows it, and nothing is let go that one still has to take in; people see of it what they asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.base.native import conform
from headrace.base.parquet_files import native_scan
from headrace.base.wording import counted
from headrace.catalog import Relation, Table
from headrace.catalog.table import EPOCH, WEIGHT
from headrace.errors import DataError, Position, SqlError
from headrace.plan.exprs import Literal
from headrace.plan.refs import LogRef, VersionRef
from headrace.runtime import Runtime
from headrace.store import Snapshot, Store, Transaction
from headrace.table import rows as tables
from headrace.table.net import keys_of, names_of, same, summed, times, told_apart
from headrace.types import BIGINT, INT, Field, Schema, arrow_schema

CAME, WENT, VERSIONS = "came", "went", "versions"
NOW = "__now"
"""What the rows are now that a version is told from, where they are no table's."""
VERSION = "__version"
"""The version of a kept row."""
_VERSIONS = pa.schema(
    [
        ("version", pa.int64()),
        ("moment", pa.int64()),
        ("label", pa.string()),
        ("inserted", pa.int64()),
        ("deleted", pa.int64()),
    ]
)
_START = datetime(1970, 1, 1, tzinfo=UTC)


def check_columns(columns: Schema, table: str, position: Position | None) -> None:
    """An error if a table's changes cannot be kept because of how its columns are called."""
    for column in columns:
        if column.name.startswith("__") or column.name.lower() in (EPOCH, WEIGHT):
            raise SqlError(
                "COLUMN_ALREADY_EXISTS",
                f"{table} has a column {column.name}: its changes need {EPOCH}, {WEIGHT} and names that begin with __",
                position=position,
                hint="give the column another name, or leave keep_changes out",
            )


def is_kept(table: Table) -> bool:
    """Whether a table has a history, for people or for those who follow it."""
    return VERSIONS in table.owns


def of(relation: Relation | None) -> Table | None:
    """The relation as the table whose history is kept, if that is: a view's answer has one like a table's rows."""
    if relation is None or relation.keep_changes is None or isinstance(relation, Table):
        return relation if isinstance(relation, Table) and relation.keep_changes is not None else None
    return Table(
        relation.name,
        relation.columns,
        keep_changes=relation.keep_changes,
        number=relation.number,
        owns=relation.owns,
    )


def owned(store: Store, relation: Relation) -> dict[str, int]:
    """References to what the store is to hold of a relation's history, if people asked for it."""
    if relation.keep_changes is None:
        return {}
    return {role: store.new_number() for role in (CAME, WENT, VERSIONS)}


def begin(tx: Transaction, table: Table, label: str) -> None:
    """Make room for the history of a table that owns one. Its first version is this epoch, when that is over."""
    if is_kept(table):
        schema = tables.stored_schema(table).append(pa.field(VERSION, pa.int64()))
        tx.create_relation(table.owns[CAME], schema)
        tx.create_relation(table.owns[WENT], schema)
        tx.create_relation(table.owns[VERSIONS], _VERSIONS)
        _note(tx, table, label, 0, 0)


def fitted(store: Store, table: Table, followed: bool) -> Table:
    """The table with a history if there is to be one: if people asked for it, or somebody reads its changes there."""
    wanted = followed or table.keep_changes is not None
    if wanted == is_kept(table) or table.files is not None:
        return table
    if wanted:
        return replace(table, owns={**table.owns, **{role: store.new_number() for role in (CAME, WENT, VERSIONS)}})
    return replace(table, owns={role: ref for role, ref in table.owns.items() if role not in (CAME, WENT, VERSIONS)})


def alter(tx: Transaction, old: Table, new: Table, label: str) -> None:
    """Have what is kept fit what the table is now, in the commit that makes it so."""
    if not is_kept(old):
        begin(tx, new, label)
    elif not is_kept(new):
        for role in (CAME, WENT, VERSIONS):
            tx.drop_relation(old.owns[role])
    elif tables.stored_schema(old) != tables.stored_schema(new):
        for role in (CAME, WENT):
            tables.reshape(tx, old, new, old.owns[role])


def note(tx: Transaction, table: Table, changed: pa.Table) -> None:
    """Keep a change in the commit that makes it: rows, and last how often each comes or goes, net.

    The epoch that begins a history changes nothing in it.
    """
    if tx.is_new(table.owns[VERSIONS]):
        return
    weights = changed.column(changed.num_columns - 1).to_numpy()
    schema = tables.stored_schema(table)
    rows = changed.select(range(changed.num_columns - 1)).rename_columns(schema.names).cast(schema)
    counts = []
    for role, sign in ((CAME, 1), (WENT, -1)):
        times = np.maximum(sign * weights, 0)
        found = rows.take(pa.array(np.repeat(np.arange(len(times)), times)))
        version = pa.repeat(pa.scalar(tx.epoch, pa.int64()), found.num_rows)
        tx.append(table.owns[role], found.append_column(VERSION, version))
        counts.append(found.num_rows)
    _note(tx, table, tx.label, *counts)
    assert table.keep_changes is not None
    let_go(tx, table, tx.moment - table.keep_changes, None)


def _note(tx: Transaction, table: Table, label: str, inserted: int, deleted: int) -> None:
    line = [[tx.epoch], [tx.moment], [label], [inserted], [deleted]]
    tx.append(table.owns[VERSIONS], pa.table(line, schema=_VERSIONS))


# Written


class _Half:
    """What came in one change, or what went: rows, and files that name them."""

    def __init__(self, runtime: Runtime, table: Table, role: str) -> None:
        self._runtime = runtime
        self._table = table
        self._ref = table.owns[role]
        self.count = 0
        self._rows: list[pa.Table] = []
        self._files: list[tuple[Path, int]] = []
        self._shared: list[str] = []
        self._written: list[Path] = []

    def take(self, chunks: Iterable[pa.Table]) -> None:
        """Rows; many of them are written to a file."""
        held: list[pa.Table] = []
        rest = iter(chunks)
        for chunk in rest:
            if chunk.num_rows:
                held.append(chunk)
            if sum(c.num_rows for c in held) >= tables.TAIL_ROWS:
                break
        else:
            self._rows += held
            self.count += sum(c.num_rows for c in held)
            return
        file, total = self._runtime.store.new_segment(self._ref), 0
        self._written.append(file)
        with tables.segment_writer(file, self._table) as write:
            for chunk in chain(held, rest):
                write(chunk)
                total += chunk.num_rows
        self.name(file, total)

    def name(self, file: Path, rows: int) -> None:
        """All rows of a file that no epoch names yet."""
        self._files.append((file, rows))
        self.count += rows

    def share(self, file: Path, rows: int) -> None:
        """All rows of a file of the table's."""
        self._shared.append(file.name)
        self.count += rows

    def add(self, tx: Transaction) -> None:
        for file, rows in self._files:
            tx.add_segment(self._ref, file, rows)
        tx.share_segments(self._ref, self._table.number, self._shared)
        for rows_ in self._rows:
            version = pa.repeat(pa.scalar(tx.epoch, pa.int64()), rows_.num_rows)
            tx.append(self._ref, tables.as_stored(self._table, rows_).append_column(VERSION, version))

    def let_go(self) -> None:
        for file in self._written:
            self._runtime.store.let_go(file)


class Recording:
    """One change on its way into a table's history, in the commit that makes it."""

    def __init__(self, runtime: Runtime, table: Table, label: str) -> None:
        self._runtime = runtime
        self._table = table
        self._label = label
        self.came = _Half(runtime, table, CAME)
        self.went = _Half(runtime, table, WENT)
        self._needed = runtime.needed_from(table)

    def take_all(self) -> None:
        """All rows of the table go."""
        with self._runtime.store.read() as snapshot:
            deleted = snapshot.deleted(self._table.number)
            for segment in snapshot.manifest(self._table.number):
                if segment.path.name not in deleted:
                    self.went.share(segment.path, segment.rows)
            self.went.take(tables.chunks(snapshot, self._table, deleted))

    def add(self, tx: Transaction) -> None:
        """In the commit, before files are taken out of the table."""
        if not (self.came.count or self.went.count):
            return
        self.came.add(tx)
        self.went.add(tx)
        _note(tx, self._table, self._label, self.came.count, self.went.count)
        if self._table.keep_changes is not None:
            let_go(tx, self._table, tx.moment - self._table.keep_changes, self._needed)

    def let_go(self) -> None:
        """It is not committed: remove what was written for it."""
        self.came.let_go()
        self.went.let_go()


@dataclass(frozen=True)
class LetGo:
    """What was let go of a history."""

    versions: int = 0
    rows: int = 0
    files: int = 0
    """That no relation names any more."""


def let_go(tx: Transaction, table: Table, horizon: int, needed: int | None) -> LetGo:
    """Let go of the versions that were over before a moment: what the table was at that moment can still be read, and
    so can what it was in the epoch that is ``needed``, if one is."""
    gone = _past(tx, table, horizon, needed)
    if len(gone) < 2:
        return LetGo()
    before, rows = len(tx.doomed), 0
    for role in (CAME, WENT):
        known = tx.rows(table.owns[role])
        tx.delete(table.owns[role], VERSION, gone)
        rows += known - tx.rows(table.owns[role])
        rows += sum(s.rows for s in tx.manifest(table.owns[role]) if s.epoch <= gone[-1].as_py())
        tx.remove_segments(table.owns[role], until=gone[-1].as_py())
    tx.delete(table.owns[VERSIONS], "version", gone.slice(0, len(gone) - 1))
    return LetGo(len(gone) - 1, rows, len(tx.doomed) - before)


def taken_in(tx: Transaction, table: Table, needed: int | None) -> None:
    """Those who follow a table have taken more of its changes in: let go of what is kept for nobody else."""
    if is_kept(table):
        let_go(tx, table, tx.moment - (table.keep_changes or 0), needed)


def would_let_go(read: Snapshot, table: Table, horizon: int, needed: int | None) -> pa.Table:
    """The versions that :func:`let_go` would take, as it lists them."""
    gone = _past(read, table, horizon, needed)
    found = versions(read, table)
    return found.slice(0, max(0, len(gone) - 1))


def _past(read: Snapshot | Transaction, table: Table, horizon: int, needed: int | None) -> pa.ChunkedArray:
    """The versions up to the one that stood at a moment, or in an epoch if that was before."""
    listed = read.table(table.owns[VERSIONS])
    after = f"SELECT min(version) FROM {listed} WHERE moment > {horizon}"
    last = f"AND version <= {needed} " if needed is not None else ""
    return read.query(
        f"SELECT version FROM {listed} WHERE version < coalesce(({after}), {(1 << 63) - 1}) {last}ORDER BY version"
    ).column("version")


# Read


def versions(read: Snapshot | Transaction, table: Table) -> pa.Table:
    """The versions that can be read, oldest first."""
    return read.query(
        "SELECT version, make_timestamptz(moment) AS moment, label, inserted, deleted "
        f"FROM {read.table(table.owns[VERSIONS])} ORDER BY version"
    )


def newest(read: Snapshot, table: Table) -> int:
    """The version the table is at."""
    found = read.query(f"SELECT max(version) AS newest FROM {read.table(table.owns[VERSIONS])}")
    version: int = found.column("newest")[0].as_py()
    return version


def version_of(read: Snapshot, table: Table, ref: VersionRef, moment: int | None, now: int) -> int:
    """The epoch a reference means: of a version, or up to the next one."""
    first, begun = _first(read, table)
    if moment is None:
        assert ref.version is not None
        if ref.version > read.epoch:
            raise _not_yet(f"version {ref.version} of {table.name}", f"the newest epoch is {read.epoch}", ref.position)
        if ref.version < first:
            raise _not_kept(read, table, f"version {ref.version} of {table.name} is", ref.position)
        return ref.version
    if moment > now:
        raise _not_yet(f"{table.name} at {time_text(moment)}", f"it is {time_text(now)}", ref.position)
    if moment < begun:
        raise _not_kept(read, table, f"{table.name} at {time_text(moment)} is", ref.position)
    listed = read.table(table.owns[VERSIONS])
    found = read.query(f"SELECT max(version) AS version FROM {listed} WHERE moment <= {moment}")
    version: int = found.column("version")[0].as_py()
    return version


def range_of(read: Snapshot, table: Table, ref: LogRef) -> tuple[int, int]:
    """The epochs a reference to changes means: after the first, up to the second."""
    first, _ = _first(read, table)
    since = first if ref.since is None else ref.since
    for epoch in (since, *([] if ref.until is None else [ref.until])):
        if epoch > read.epoch:
            raise _not_yet(f"version {epoch} of {table.name}", f"the newest epoch is {read.epoch}", ref.position)
    if since < first:
        raise _not_kept(read, table, f"changes of {table.name} after version {since} are", ref.position)
    return since, read.epoch if ref.until is None else ref.until


def _first(read: Snapshot, table: Table) -> tuple[int, int]:
    found = read.query(
        f"SELECT min(version) AS version, arg_min(moment, version) AS moment FROM {read.table(table.owns[VERSIONS])}"
    )
    return found.column("version")[0].as_py(), found.column("moment")[0].as_py()


def time_text(moment: int) -> str:
    """A moment, as messages say it."""
    try:
        return f"{_START + timedelta(microseconds=moment):%Y-%m-%d %H:%M:%S.%f} UTC"
    except OverflowError:
        return f"{moment} microseconds after 1970"


def _not_yet(what: str, now: str, position: Position | None) -> DataError:
    return DataError(
        "VERSION_NOT_YET", f"{what} has not been: {now}", position=position, hint="ask for one that has been"
    )


def _not_kept(read: Snapshot, table: Table, what: str, position: Position | None) -> DataError:
    found = versions(read, table)
    ends = [(found.column("version")[i].as_py(), time_text(found.column("moment")[i].value)) for i in (0, -1)]
    kept = " to ".join(f"{version} ({time})" for version, time in dict.fromkeys(ends))
    return DataError(
        "VERSION_NOT_KEPT",
        f"{what} not kept",
        position=position,
        hint=f"kept {'are' if len(set(ends)) > 1 else 'is'} {counted(found.num_rows, 'version')}, {kept}; "
        "headrace.versions lists them",
    )


def changes(
    read: Snapshot, table: Table, since: int, until: int, fields: Sequence[str] | None = None, *, net: bool = False
) -> str:
    """Native SQL for the changes after an epoch up to another: the fields, or all columns, ``_epoch`` and ``_weight``.
    ``net``, rows that were there in between only may be missing.
    """
    columns = table.columns
    names = [c.name for c in columns]
    parts: list[str] = []
    for role, weight in ((CAME, 1), (WENT, -1)):
        ref = table.owns[role]

        def values(lie: Mapping[str, str | Literal], version: str, weight: int = weight) -> str:
            return f"{tables.selected(lie, names)}, {version} AS {EPOCH}, {weight}::INTEGER AS {WEIGHT}"

        where = f"WHERE {VERSION} > {since} AND {VERSION} <= {until}"
        parts.append(f"SELECT {values(tables.in_store(table), VERSION)} FROM {read.table(ref)} {where}")
        for segment in read.manifest(ref):
            if since < segment.epoch <= until:
                lie = tables.in_segment(read, table, segment.path)
                parts.append(f"SELECT {values(lie, f'{segment.epoch}::BIGINT')} FROM {native_scan([segment.path])}")
    whole = f"({' UNION ALL '.join(parts)})"
    # Rows that differed by a column that is gone now may be equal.
    if not net and (table.spent or _has_several(read, table, since, until)):
        whole = _net_of_epochs(columns, whole)
    if fields is None:
        return whole
    return f"(SELECT {names_of(tuple(f for f in log_columns(table) if f.name in fields)) or '1 AS one'} FROM {whole})"


def whole(read: Snapshot, table: Table, now: pa.Table | None = None) -> tuple[int, pa.Table]:
    """The version a table is at, and its rows as changes from nothing; ``now`` are they, if the store does not say."""
    version = newest(read, table)
    columns = f"{names_of(table.columns)}, {version}::BIGINT AS {EPOCH}, 1::INTEGER AS {WEIGHT}"
    there, given = (tables.source(read, table), {}) if now is None else (NOW, {NOW: now})
    return version, _log_rows(read, table, f"SELECT {columns} FROM {there}", **given)


def changed(read: Snapshot, table: Table, since: int) -> tuple[int, pa.Table]:
    """The version a table is at, and its changes after an epoch, in the order of their epochs."""
    since, until = range_of(read, table, LogRef(table.name, table.number, since))
    text = f"SELECT * FROM {changes(read, table, since, until)} ORDER BY {EPOCH}"
    return newest(read, table), _log_rows(read, table, text)


def keeps_from(read: Snapshot, table: Table, since: int) -> bool:
    """Whether all changes after an epoch are kept."""
    return _first(read, table)[0] <= since


def _log_rows(read: Snapshot, table: Table, text: str, **given: pa.Table) -> pa.Table:
    return conform(read.query(text, **given), arrow_schema(log_columns(table)))


def log_columns(table: Table) -> Schema:
    """What a reader of changes sees."""
    return (*(Field(c.name, c.type) for c in table.columns), Field(EPOCH, BIGINT), Field(WEIGHT, INT))


def _has_several(read: Snapshot, table: Table, since: int, until: int) -> bool:
    """Whether some epoch changed the table more than once, as a batch of statements may: only their sum is net."""
    listed = f"FROM {read.table(table.owns[VERSIONS])} WHERE version > {since} AND version <= {until}"
    found = read.query(f"SELECT count(*) > count(DISTINCT version) AS several {listed}")
    several: bool = found.column("several")[0].as_py()
    return several


def _net_of_epochs(columns: Schema, rows: str) -> str:
    told = (*columns, Field(EPOCH, BIGINT))
    weighed = summed(told, f"(SELECT *, {WEIGHT} AS __weight FROM {rows})")
    halves = [f"SELECT *, {sign}::INTEGER AS {WEIGHT} FROM {times(told, weighed, sign)}" for sign in (1, -1)]
    return f"({' UNION ALL '.join(halves)})"


def net(read: Snapshot, table: Table, since: int, fields: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """What came to a table after an epoch, and what went, of these of its columns: rows that are equal cancel."""
    columns = tuple(c for c in table.columns if c.name in fields)
    log = changes(read, table, since, read.epoch, net=True)
    weighed = summed(columns, f"(SELECT {names_of(columns)}, {WEIGHT} AS __weight FROM {log})")
    came, went = (read.query(f"SELECT * FROM {times(columns, weighed, sign)}") for sign in (1, -1))
    return conform(came, arrow_schema(columns)), conform(went, arrow_schema(columns))


def changed_rows(read: Snapshot | Transaction, table: Table, since: int) -> int:
    """How many rows came and went after an epoch."""
    text = f"SELECT coalesce(sum(inserted + deleted), 0)::BIGINT AS n FROM {read.table(table.owns[VERSIONS])}"
    found: int = read.query(f"{text} WHERE version > {since}").column("n")[0].as_py()
    return found


def source(read: Snapshot, table: Table, version: int, fields: Sequence[str], now: str | None = None) -> str:
    """Native SQL for fields of the rows as they were at the end of an epoch, a parenthesised query.

    ``now`` is native SQL for all that they are, if they are no table's.
    """
    if newest(read, table) <= version:
        return tables.source(read, table, fields) if now is None else now
    columns = table.columns
    wanted = names_of(tuple(c for c in columns if c.name in fields)) or "1 AS one"
    keys = ", ".join(keys_of(columns))
    log = changes(read, table, version, read.epoch, net=True)
    moved = summed(columns, f"(SELECT *, {WEIGHT} AS __weight FROM {log})")
    there = f"(SELECT {told_apart(columns)}{names_of(columns)} FROM {now or tables.source(read, table)})"
    alike = same(columns, "now", "moved")
    # Only rows that are equal to one that came or went have to be counted.
    touched = f"SELECT *, 1::BIGINT AS __weight FROM now SEMI JOIN moved ON {alike}"
    left = (
        f"(SELECT {keys}, sum(__weight)::BIGINT AS __weight FROM "
        f"({touched} UNION ALL BY NAME SELECT * REPLACE (-__weight AS __weight) FROM moved) GROUP BY {keys})"
    )
    return (
        f"(WITH moved AS MATERIALIZED {moved}, now AS {there} "
        f"SELECT {wanted} FROM now ANTI JOIN moved ON {alike} "
        f"UNION ALL SELECT {wanted} FROM {times(columns, left)})"
    )
