"""What can be read inside one transaction, whether it is a snapshot's or the writer's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace.base.native import native_query
from headrace.base.parquet_files import footer_of
from headrace.errors import StoreError
from headrace.store.directory import DATABASE, checksum, damaged, fault_of
from headrace.store.format import COUNTED, identifier, literal
from headrace.store.ledger import MARKS, Ledger, bareness_of, files_of, filling_of, rewrite_of

EPOCH_COLUMN = "__epoch"
"""The hidden last column of every stored relation: the epoch a row was written in."""

_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Definition:
    """A named thing of the catalog. Frozen: a name is put once and dropped, never altered."""

    name: str
    kind: str
    body: dict[str, Any]
    epoch: int


@dataclass(frozen=True, slots=True)
class Segment:
    """An immutable file of a relation, visible since an epoch."""

    path: Path
    rows: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """One commit: when, what for, and the relations whose content it altered."""

    epoch: int
    at: datetime
    label: str
    changed: tuple[str, ...]
    counted: dict[str, int]
    """What it added to which count (:meth:`Reading.counts`)."""


Stored = int | str
"""What a stored relation is known by: a number that nothing else of the database ever has, or a name."""


def key_of(stored: Stored) -> str:
    """A reference as the book spells it. Names are compared without case, as Spark compares them.

    >>> key_of(17), key_of("Low_Stock")
    ('17', 'low_stock')
    """
    return str(stored) if isinstance(stored, int) else stored.lower()


def table_of(relation: Stored) -> str:
    """A stored relation as SQL text; its last column is ``__epoch``.

    >>> table_of("S1")
    'state."s1"'
    """
    return f"state.{identifier(key_of(relation))}"


def no_relation(relation: Stored) -> StoreError:
    """The refusal for a relation that is not stored."""
    return StoreError("RELATION_NOT_FOUND", f"no stored relation {relation!r}", hint="create it with create_relation")


class Reading:
    """Reads of one transaction: everything returned belongs to the same epoch."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, epoch: int, segments: Path, ledger: Ledger) -> None:
        self.cursor = cursor
        self.epoch = epoch
        self._segments = segments
        self._ledger = ledger

    def _fetch(self, sql: str) -> list[tuple[Any, ...]]:
        # Always to the end: a result left half read blocks the connection (ResourceInUseException).
        with self._sound():
            rows: list[tuple[Any, ...]] = self.cursor.execute(sql).fetchall()
        return rows

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """A database file found altered while it is read is the store's error, not the query's."""
        try:
            yield
        except duckdb.Error as error:
            if fault := fault_of(self._segments.parent / DATABASE, error):
                raise fault from error
            raise

    def table(self, relation: Stored) -> str:
        """The relation's own table as SQL text for ``query``; its columns are followed by ``__epoch``."""
        return table_of(relation)

    def query(self, sql: str, **relations: pa.Table) -> pa.Table:
        """Run DuckDB SQL in this transaction; Arrow tables given by name are relations of it."""
        with self._sound():
            return native_query(self.cursor, sql, relations)

    @property
    def settled(self) -> int:
        """The last epoch that is as it will ever be: what is read may be kept as of it."""
        return self.epoch

    def last_change(self, relation: Stored) -> int:
        """The epoch that last altered the relation's content (compaction does not); 0 if none did."""
        return self._ledger.last_change(key_of(relation), self.epoch)

    def next_change(self, relation: Stored, epoch: int) -> int | None:
        """The first epoch after another that altered the relation's content, or an earlier one if that is not known any
        more; None if none did."""
        if self.last_change(relation) <= epoch:
            return None
        return self._ledger.next_change(key_of(relation), epoch)

    def rewritten(self, relation: Stored) -> int:
        """The epoch that last stamped all of the relation's rows anew (compaction does); 0 if none did."""
        return self._ledger.last_change(rewrite_of(key_of(relation)), self.epoch)

    def schema(self, relation: Stored) -> pa.Schema:
        """The schema the relation was created with, ``__epoch`` left out."""
        found = self._fetch(f"SELECT arrow FROM book.relations WHERE relation = {literal(key_of(relation))}")
        if not found:
            raise no_relation(relation)
        return pa.ipc.read_schema(pa.py_buffer(found[0][0]))

    def scan(self, relation: Stored) -> pa.Table:
        """All rows stored in the database file, in the schema the relation was created with."""
        return self.since(relation, -1, self.schema(relation))

    def since(self, relation: Stored, epoch: int, schema: pa.Schema) -> pa.Table:
        """All rows stamped after an epoch, however they are kept; ``schema`` is the relation's own."""
        appended = self._appended(relation, epoch, schema)
        if self._filled(key_of(relation)) <= epoch or self._is_bare(key_of(relation)):
            return appended
        columns = ", ".join(identifier(name) for name in schema.names)
        rows = self.query(f"SELECT {columns} FROM {self.table(relation)} WHERE {EPOCH_COLUMN} > {epoch}")
        return pa.concat_tables([rows.cast(schema), appended])

    def _filled(self, key: str) -> int:
        """The epoch that last put rows into the relation's own table, as far as is known."""
        return max(self._ledger.last_change(mark(key), self.epoch) for mark in (filling_of, rewrite_of))

    def _is_bare(self, key: str) -> bool:
        """Whether the relation has no table of its own yet: all its rows are in batches."""
        bare = self._ledger.last_change(bareness_of(key), self.epoch)
        return bare > 0 and self._filled(key) <= bare

    def whole(self, relation: Stored, batches: str) -> tuple[str, pa.Table]:
        """The relation as SQL text that reads its appended batches by the name ``batches``, and those batches."""
        schema = self.schema(relation)
        columns = ", ".join(identifier(name) for name in schema.names)
        appended, bare = self._appended(relation, -1, schema), self._is_bare(key_of(relation))
        sources = [] if bare else [self.table(relation)]
        if bare or appended.num_rows:
            sources.append(batches)
        text = " UNION ALL ".join(f"SELECT {columns} FROM {source}" for source in sources)
        return f"({text})", appended

    def _appended(self, relation: Stored, since: int, schema: pa.Schema) -> pa.Table:
        """The rows appended as batches that no rewrite has folded in yet."""
        key = key_of(relation)
        recent = self._recent(key, since)
        if recent is not None:
            fitting = [rows if rows.schema.equals(schema) else rows.cast(schema) for rows in recent]
            return fitting[0] if len(fitting) == 1 else pa.concat_tables([schema.empty_table(), *fitting])
        # In their order: doubles add up to other last digits in another one.
        found = self._fetch(
            f"SELECT batch FROM book.appended WHERE relation = {literal(key)} AND epoch > {since} ORDER BY epoch, rowid"
        )
        return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(b), schema) for (b,) in found], schema)

    def _recent(self, key: str, since: int) -> list[pa.Table] | None:
        """The batches since an epoch, if they are all in memory."""
        return self._ledger.recent.between(key, since, self.epoch)

    def relations(self) -> list[str]:
        """The keys (lower-case names) of all stored relations."""
        return [relation for (relation,) in self._fetch("SELECT relation FROM book.relations ORDER BY relation")]

    def has(self, relation: Stored) -> bool:
        """Whether it is stored."""
        return bool(self._fetch(f"SELECT 1 FROM book.relations WHERE relation = {literal(key_of(relation))}"))

    def rows(self, relation: Stored) -> int:
        """How many rows the database file holds for the relation; segments are not counted."""
        try:
            return sum(self.queued(relation))
        except duckdb.CatalogException:
            raise no_relation(relation) from None

    def queued(self, relation: Stored) -> tuple[int, int]:
        """How many of these rows were there when the relation was last rewritten, and how many came since."""
        key = key_of(relation)
        batches = f"(SELECT coalesce(sum(rows), 0) FROM book.appended WHERE relation = {literal(key)})"
        if self._is_bare(key):
            return 0, int(self._fetch(f"SELECT {batches}")[0][0])
        merged = self.rewritten(relation)
        old, new, waiting = self._fetch(
            f"SELECT count(*) FILTER ({EPOCH_COLUMN} <= {merged}), count(*) FILTER ({EPOCH_COLUMN} > {merged}), "
            f"{batches} FROM {self.table(relation)}"
        )[0]
        return int(old), int(new + waiting)

    def manifest(self, relation: Stored) -> Sequence[Segment]:
        """The relation's segments, oldest first, each checked against its checksum when it is first asked for."""
        key = key_of(relation)
        at = self._ledger.last_change(files_of(key), self.epoch)
        known = self._ledger.manifests.get(key)
        if known is not None and known[0] == at and self._may_know(key):
            return known[1]
        found = self._fetch(
            "SELECT file, rows, epoch, bytes, crc FROM book.segments "
            f"WHERE relation = {literal(key)} ORDER BY epoch, file"
        )
        for file, _, _, *written in found:
            if file not in self._ledger.sound and written != [None, None]:
                self._check(self._segments / file, (written[0], written[1]))
                self._ledger.sound.add(file)
        segments = [Segment(self._segments / file, rows, epoch) for file, rows, epoch, *_ in found]
        if self._may_know(key):
            self._ledger.manifests[key] = at, segments
        return segments

    def _may_know(self, key: str) -> bool:
        """Whether a relation's files are those of a committed epoch."""
        return True

    def _check(self, file: Path, written: tuple[int, int]) -> None:
        try:
            if checksum(file) == written:
                return
            what = "is not as it was written"
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
        raise damaged(file, what)

    def segments(self, relation: Stored) -> list[Path]:
        """The files of the relation, oldest first."""
        return [segment.path for segment in self.manifest(relation)]

    def columns(self, file: Path) -> frozenset[str]:
        """The columns a segment has."""
        known = self._ledger.columns.get(file.name)
        if known is None:
            known = self._ledger.columns[file.name] = frozenset(footer_of(file).schema.to_arrow_schema().names)
        return known

    def deleted(self, relation: Stored) -> dict[str, int]:
        """How many rows of the relation's files are left out, by the names of files where some are."""
        where = f"WHERE relation = {literal(key_of(relation))}"
        return dict(self._fetch(f"SELECT file, count(*) FROM book.deleted {where} GROUP BY file"))

    def rows_deleted(self, relation: Stored, file: str) -> pa.ChunkedArray:
        """The rows of one of the relation's files that are left out."""
        where = f"WHERE relation = {literal(key_of(relation))} AND file = {literal(file)}"
        return self.query(f"SELECT row FROM book.deleted {where}").column("row")

    def files(self, prefix: str) -> list[Path]:
        """All files whose names begin so, whichever relation has them."""
        found = self._fetch(f"SELECT DISTINCT file FROM book.segments WHERE starts_with(file, {literal(prefix)})")
        return [self._segments / file for (file,) in found]

    def definitions(self) -> list[Definition]:
        """The catalog, in the order things were put: what depends on another comes after it."""
        found = self._fetch("SELECT name, kind, body, epoch FROM book.definitions ORDER BY epoch, rowid")
        return [Definition(name, kind, json.loads(body), epoch) for name, kind, body, epoch in found]

    def epochs(self, limit: int = 100) -> list[Epoch]:
        """The most recent epochs, newest first. Far older ones are folded away."""
        found = self._fetch(
            "SELECT epoch, moment, label, changed, counted FROM book.epochs "
            f"WHERE epoch > {self.epoch - limit} ORDER BY epoch DESC LIMIT {limit}"
        )
        return [
            Epoch(
                epoch,
                _START + timedelta(microseconds=at),
                label,
                tuple(name for name in json.loads(changed) if not re.match(MARKS, name)),
                {entry["what"]: entry["rows"] for entry in json.loads(counted)},
            )
            for epoch, at, label, changed, counted in found
        ]

    def log(self) -> pa.Table:
        """All epochs that are not folded away: ``epoch``, ``time``, ``label``, and a row for each relation an epoch
        altered or count it added to (``what``), with the ``rows`` counted."""
        return self.query(f"""
            SELECT epoch, make_timestamptz(moment) AS time, label, what, rows
            FROM book.epochs LEFT JOIN (
                SELECT epoch, what, NULL::BIGINT AS rows FROM (
                    SELECT epoch, unnest(from_json(changed, '["VARCHAR"]')) AS what FROM book.epochs
                ) WHERE NOT regexp_matches(what, '{MARKS}')
                UNION ALL SELECT epoch, what, rows FROM ({COUNTED})
            ) USING (epoch)
        """)

    def counts(self, since: datetime | None = None) -> dict[str, int]:
        """What epochs have counted (:meth:`Transaction.count`), in all or in the epochs since a moment."""
        recent = ""
        if since is not None:
            moment = (since - _START) // timedelta(microseconds=1)
            recent = f" SEMI JOIN (SELECT epoch FROM book.epochs WHERE moment >= {moment}) USING (epoch)"
        return dict(self._fetch(f"SELECT what, sum(rows)::BIGINT FROM ({COUNTED}){recent} GROUP BY what"))

    def created(self, relation: Stored) -> int:
        """The epoch the relation was made in."""
        found = self._fetch(f"SELECT epoch FROM book.relations WHERE relation = {literal(key_of(relation))}")
        if not found:
            raise no_relation(relation)
        return int(found[0][0])
