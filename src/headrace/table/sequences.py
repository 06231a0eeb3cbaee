"""What was last applied to each key of a table: by this ``apply_changes`` knows a change that comes late.

The table owns one stored relation more, made when changes are first applied to it. It only grows, a row for each key a
commit changes, and is made short again when it has twice as many rows as it needs. A key's columns go by the ids of the
table's columns, so renaming one changes nothing here.

What it says of a key was committed last, and has the highest sequence: a lower one is late, and not noted. A deleted
key stays, as a *tombstone*: without it a late version would bring its row back. In a history (SCD 2) the table's own
rows say what was inserted when, so only deletes are noted, each for itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace.catalog import Table
from headrace.store import Snapshot, Transaction
from headrace.store.reading import EPOCH_COLUMN
from headrace.types import Field

ROLE = "sequences"
"""What the relation is to its table (``Relation.owns``)."""
LIVE, DELETED, TRUNCATED, COUNT = range(4)
"""What a row of it says: of a key, that it was upserted or deleted; when all rows were deleted; how many tombstones
there are."""
_SHORT = 65_536


@dataclass(frozen=True)
class Noted:
    """What a commit adds."""

    rows: pa.Table
    """The keys, their sequences and what happened (``kind``), for the relation's own columns in their order."""
    tombstones: int = 0
    """How many more tombstones there are."""
    truncated: bool = False
    """Whether all rows were deleted: what is noted of earlier changes may go."""
    keep: timedelta | None = None
    """How long a tombstone is kept."""


@dataclass(frozen=True)
class Sequences:
    """The relation: where it is stored, its key columns and the types of its sequence."""

    number: int
    schema: pa.Schema
    history: bool

    @staticmethod
    def new(number: int, keys: Sequence[Field], types: Sequence[pa.DataType], *, history: bool) -> Sequences:
        columns = [pa.field(f"k{f.id}", f.type.arrow) for f in keys]
        columns += [pa.field(f"s{i}", type) for i, type in enumerate(types)]
        last = [("kind", pa.int8()), ("since", pa.timestamp("us")), ("tombstones", pa.int64())]
        return Sequences(number, pa.schema([*columns, *(pa.field(*c) for c in last)]), history)

    @staticmethod
    def of(snapshot: Snapshot, table: Table, *, history: bool) -> Sequences | None:
        """That of a table, if changes were applied to it before."""
        number = table.owns.get(ROLE)
        return None if number is None else Sequences(number, snapshot.schema(number), history)

    @property
    def keys(self) -> list[int]:
        """The ids of the key columns."""
        return [int(name[1:]) for name in self.schema.names if re.fullmatch(r"k\d+", name)]

    @property
    def types(self) -> list[pa.DataType]:
        return [f.type for f in self.schema if re.fullmatch(r"s\d+", f.name)]

    def columns(self) -> str:
        """The key and sequence columns under the names queries give them: k0, k1, …, s0, …"""
        keys = [f'"k{id}" AS k{i}' for i, id in enumerate(self.keys)]
        return ", ".join([*keys, *(f"s{i}" for i in range(len(self.types)))])

    def latest(self, read: Snapshot, touched: str) -> str:
        """Native SQL for the last word on each key; in a history, on each sequence of a key.

        ``touched`` joins others to leave keys out.
        """
        order = [f"s{i}" for i in range(len(self.types))]
        by = [f"k{i}" for i in range(len(self.keys))] + (order if self.history else [])
        values = ([] if self.history else order) + ["kind"]
        last = ", ".join(f"arg_max({name}, epoch) AS {name}" for name in values)
        noted = f"SELECT {self.columns()}, kind, {EPOCH_COLUMN} AS epoch FROM {read.table(self.number)}"
        kept = f"(FROM ({noted}) WHERE kind <= {DELETED}) {touched}"
        return f"SELECT {', '.join(by)}, {last} FROM {kept} GROUP BY {', '.join(by)}"

    def truncated(self, read: Snapshot | Transaction) -> pa.Table:
        """The sequences at which all rows were deleted."""
        names = ", ".join(f"s{i}" for i in range(len(self.types))) or "kind"
        return read.query(f"SELECT {names} FROM {read.table(self.number)} WHERE kind = {TRUNCATED}")

    def tombstones(self, read: Snapshot | Transaction) -> int:
        found = read.query(
            f"SELECT arg_max(tombstones, {EPOCH_COLUMN}) AS n FROM {read.table(self.number)} WHERE kind = {COUNT}"
        )
        return int(found.column("n")[0].as_py() or 0)

    def begin(self, tx: Transaction, noted: Noted) -> int:
        """Make the relation, with what the first commit does; returns how many tombstones there are."""
        now = datetime.now(UTC).replace(tzinfo=None)
        tx.create_relation(self.number, self.schema)
        tx.replace(self.number, self._whole(noted.rows, now))
        self._count(tx, noted.tombstones, now)
        return noted.tombstones

    def note(self, tx: Transaction, noted: Noted) -> int:
        """Add what a commit does; returns how many tombstones there are."""
        before = self.tombstones(tx)
        now = datetime.now(UTC).replace(tzinfo=None)
        merged, since = tx.queued(self.number)
        if noted.rows.num_rows:
            tx.append(self.number, self._whole(noted.rows, now))
        cutoff = None if noted.keep is None else now - noted.keep
        is_long = noted.rows.num_rows > 0 and since > max(_SHORT, merged)
        if noted.truncated or is_long or (cutoff is not None and self._has_older(tx, cutoff)):
            return self._shorten(tx, cutoff, now)
        if noted.tombstones:
            self._count(tx, before + noted.tombstones, now)
        return before + noted.tombstones

    def _whole(self, rows: pa.Table, now: datetime) -> pa.Table:
        rows = rows.append_column("since", pa.repeat(pa.scalar(now, pa.timestamp("us")), rows.num_rows))
        rows = rows.append_column("tombstones", pa.nulls(rows.num_rows, pa.int64()))
        return rows.rename_columns(self.schema.names).cast(self.schema)

    def _count(self, tx: Transaction, tombstones: int, now: datetime) -> None:
        values = {"kind": COUNT, "since": now, "tombstones": tombstones}
        tx.append(self.number, pa.Table.from_pylist([values], schema=self.schema))

    def _has_older(self, tx: Transaction, cutoff: datetime) -> bool:
        text = f"SELECT 1 FROM {tx.table(self.number)} WHERE kind = {DELETED} AND since < TIMESTAMP '{cutoff}' LIMIT 1"
        return bool(tx.query(text).num_rows)

    def _shorten(self, tx: Transaction, cutoff: datetime | None, now: datetime) -> int:
        """Keep what still says something; returns how many tombstones there are."""
        order = [f"s{i}" for i in range(len(self.types))]
        by = [f"k{id}" for id in self.keys] + (order if self.history else [])
        table, names = tx.table(self.number), ", ".join(self.schema.names)
        last = ", ".join(n if n in by else f"arg_max({n}, {EPOCH_COLUMN}) AS {n}" for n in self.schema.names)
        marks = f"SELECT DISTINCT ON ({', '.join(order) or 'kind'}) {names} FROM {table} WHERE kind = {TRUNCATED}"
        if not self.history:
            marks += f" ORDER BY {', '.join(f'{c} DESC' for c in order)} LIMIT 1" if order else ""
        if self.history:
            left = f"kind = {DELETED}"
        else:
            left = f"NOT EXISTS (FROM marks WHERE {below(order, 'of_keys', 'marks')})" if order else "true"
        if cutoff is not None:
            left += f" AND NOT (kind = {DELETED} AND since < TIMESTAMP '{cutoff}')"
        rows = tx.query(
            f"WITH marks AS ({marks}), of_keys AS (SELECT {last} FROM {table} WHERE kind <= {DELETED} "
            f"GROUP BY {', '.join(by)}) SELECT * FROM of_keys WHERE {left} UNION ALL SELECT * FROM marks"
        ).cast(self.schema)
        tombstones = int((rows.column("kind").to_numpy() == DELETED).sum())
        tx.replace(self.number, rows, altered=True)
        self._count(tx, tombstones, now)
        return tombstones


def below(order: Sequence[str], one: str, other: str) -> str:
    """SQL for one sequence being lower than another; one that is NULL is lower than any.

    >>> below(["s0", "s1"], "a", "b")
    '(a.s0 IS NULL OR ROW(a.s0, a.s1) < ROW(b.s0, b.s1))'
    """
    ours, theirs = (", ".join(f"{of}.{c}" for c in order) for of in (one, other))
    if len(order) == 1:
        return f"({ours} IS NULL OR {ours} < {theirs})"
    return f"({one}.{order[0]} IS NULL OR ROW({ours}) < ROW({theirs}))"
