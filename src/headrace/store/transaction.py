"""One epoch in the making: what a commit's work may do, all of it or none of it.

A transaction runs on the writer thread, or on the one that the writer lends it to (``batch.py``). Whatever it does
becomes visible with its epoch; if the work raises, the database, the catalog and the ledger are as they were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import duckdb
import pyarrow as pa

from headrace.errors import CatalogError, StoreError
from headrace.store.directory import broken, checksum, sync_file
from headrace.store.format import FORMAT, identifier, literal, microseconds
from headrace.store.ledger import CATALOG, MARKS, Ledger, bareness_of, files_of, filling_of, rewrite_of
from headrace.store.reading import EPOCH_COLUMN, Reading, Stored, key_of, no_relation
from headrace.store.snapshot import Snapshot

V = TypeVar("V")

BATCH_ROWS = 16_384
"""Appended rows that are kept as one batch; more go into the relation's own table."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what DuckDB and the system say about a write that failed into the store's own error."""
    try:
        yield
    except duckdb.FatalException as error:
        raise broken(path, str(error)) from error
    except (duckdb.IOException, duckdb.TransactionException, duckdb.OutOfMemoryException, OSError) as error:
        # DuckDB reports a log it could not write as a failed COMMIT; other transaction errors are not ours to name.
        if isinstance(error, duckdb.TransactionException) and "Failed to commit" not in str(error):
            raise
        raise StoreError(
            "STATE_NOT_WRITTEN",
            f"{path}: {error}",
            hint="nothing was changed; free disk space or memory and try again",
        ) from error


class Draft(Generic[V]):
    """A mapping as one transaction sees it, at the cost of what it alters, however large the mapping is.

    >>> known = {"a": 1, "b": 2}; draft = Draft(known)
    >>> draft["c"] = 3; del draft["a"]
    >>> "a" in draft, draft["b"], draft["c"], known
    (False, 2, 3, {'a': 1, 'b': 2})
    >>> draft.settle(); known
    {'b': 2, 'c': 3}
    """

    def __init__(self, known: dict[str, V]) -> None:
        self._known = known
        self._altered: dict[str, V | None] = {}

    def get(self, key: str) -> V | None:
        return self._altered[key] if key in self._altered else self._known.get(key)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: str) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: V) -> None:
        self._altered[key] = value

    def __delitem__(self, key: str) -> None:
        self._altered[key] = None

    def settle(self) -> None:
        """The transaction is committed."""
        for key, value in self._altered.items():
            if value is None:
                self._known.pop(key, None)
            else:
                self._known[key] = value


class Transaction(Snapshot):
    """Changes that become one epoch together; it reads as a snapshot of that epoch does, as far as it is made."""

    is_draft: ClassVar[bool] = True

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        epoch: int,
        segments: Path,
        ledger: Ledger,
        schemas: dict[str, pa.Schema],
        names: dict[str, tuple[str, str]],
        label: str = "",
    ) -> None:
        Reading.__init__(self, cursor, epoch, segments, ledger)
        self.label = label
        self.schemas = Draft(schemas)
        """Schemas of the stored relations as this transaction sees them."""
        self.names = Draft(names)
        """Names and kinds of definitions, by key."""
        self.changed: set[str] = set()
        """Relations whose content this epoch alters."""
        self.sequences: list[tuple[str, int]] = []
        """What was recorded of sources."""
        self.counted: dict[str, int] = {}
        self.counted_anew: set[str] = set()
        self.batches: dict[str, list[pa.Table]] = {}
        """What was appended as batches, by relation."""
        self.made: set[str] = set()
        """Relations that are new."""
        self.renewed: set[str] = set()
        """Relations whose rows were swapped or dropped."""
        self.doomed: list[Path] = []
        """Files that no epoch from this one on names."""
        self.written = 0
        """Rows given to DuckDB; very many of them it writes to the database file before the commit."""
        self.added: list[Path] = []
        """Segments that are new."""
        self.takes_epoch = True
        self.altered = False
        """Whether anything was changed, since somebody last said no."""
        self.shared = False
        """Whether several statements have it, one after the other."""
        self._checked: dict[str, tuple[int, int]] = {}
        """Files named in this epoch, with their sizes and checksums."""

    @cached_property
    def moment(self) -> int:
        """When this epoch is, in microseconds; fixed when it is first asked for."""
        return microseconds()

    def unchanged(self) -> None:
        """Say that this work changed nothing: it is rolled back and takes no epoch."""
        self.takes_epoch = False

    # -- catalog ---------------------------------------------------------------------------------

    def put(self, name: str, kind: str, definition: Mapping[str, Any]) -> None:
        """Enter a definition under a name that is still free (case does not distinguish names)."""
        found = self.names.get(key_of(name))
        if found is not None:
            raise CatalogError(
                "TABLE_OR_VIEW_ALREADY_EXISTS",
                f"a {found[1]} named {found[0]!r} exists",
                hint="drop it first, or choose another name",
            )
        body = json.dumps(definition, ensure_ascii=False, allow_nan=False)
        self._execute(
            "INSERT INTO book.definitions VALUES "
            f"({literal(name)}, {literal(key_of(name))}, {literal(kind)}, {literal(body)}, {FORMAT}, {self.epoch})"
        )
        self.names[key_of(name)] = (name, kind)
        self.changed.add(CATALOG)

    def redefine(self, name: str, definition: Mapping[str, Any], new_name: str = "") -> int:
        """Put another definition in the place of the one under a name, which stays what it is and as old as it is.

        It goes under a new name if one is given. Returns the epoch it was made in.
        """
        body = json.dumps(definition, ensure_ascii=False, allow_nan=False)
        new = new_name or self.names[key_of(name)][0]
        self.altered = True
        found = self._fetch(
            f"UPDATE book.definitions SET body = {literal(body)}, format = {FORMAT}, name = {literal(new)}, "
            f"key = {literal(key_of(new))} WHERE key = {literal(key_of(name))} RETURNING epoch"
        )
        kind = self.names[key_of(name)][1]
        del self.names[key_of(name)]
        self.names[key_of(new)] = (new, kind)
        self.changed.add(CATALOG)
        return int(found[0][0])

    def is_new(self, relation: Stored) -> bool:
        """Whether this very epoch made a relation."""
        return key_of(relation) in self.made

    def note_change(self, relation: Stored) -> None:
        """Say that a relation is not what it was, whether its rows are or not: what was kept of it is out of date."""
        self.changed.add(self._known(relation))

    def drop(self, name: str) -> int:
        """Take a definition out of the catalog; returns the epoch it was made in. Its relations are the caller's to
        drop."""
        self.altered = True
        gone = self._fetch(f"DELETE FROM book.definitions WHERE key = {literal(key_of(name))} RETURNING body, epoch")
        if not gone:
            raise CatalogError("TABLE_OR_VIEW_NOT_FOUND", f"nothing is named {name!r}", hint="check the name")
        del self.names[key_of(name)]
        self.changed.add(CATALOG)
        if number := json.loads(gone[0][0]).get("number"):
            self.changed.add(rewrite_of(key_of(number)))  # so that nobody gets it again
        return int(gone[0][1])

    # -- relations -------------------------------------------------------------------------------

    def create_relation(self, relation: Stored, schema: pa.Schema, *, bare: bool = False) -> None:
        """Make an empty stored relation.

        A ``bare`` one gets a table of its own when it is first rewritten, or gets more rows than a batch has: each
        table there is makes the making of the next one dearer.
        """
        key = key_of(relation)
        names = [key_of(name) for name in schema.names]
        if not key or not names or EPOCH_COLUMN in names or len(set(names)) < len(names):
            raise StoreError(
                "INVALID_RELATION",
                f"relation {relation!r} cannot have the columns {schema.names}",
                hint=f"give it a name and distinct columns, none of them {EPOCH_COLUMN}",
            )
        if key in self.schemas:
            raise StoreError("RELATION_EXISTS", f"relation {relation!r} is stored already", hint="choose another name")
        self.schemas[key] = schema.remove_metadata()
        if bare:
            self.changed.add(bareness_of(key))
        else:
            self._fill(key, schema.empty_table())
        arrow = schema.remove_metadata().serialize().to_pybytes()
        with self._altering():
            self.cursor.execute(
                "INSERT INTO book.relations VALUES (?, ?::BLOB, ?, ?)", [key, arrow, FORMAT, self.epoch]
            )
        self.changed.add(key)
        self.made.add(key)

    def append(self, relation: Stored, rows: pa.Table) -> None:
        """Add rows to a stored relation, stamped with this epoch."""
        key, rows = key_of(relation), self._conform(relation, rows)
        if rows.num_rows:
            if self._is_bare(key):
                self._fill(key, rows)
            else:
                # `rows` is found by DuckDB in this frame: registering a view costs more than the insert.
                with self._altering():
                    self.cursor.execute(f"INSERT INTO {self.table(key)} SELECT *, {self.epoch} FROM rows")
                self.written += rows.num_rows
            self.changed |= {key, filling_of(key)}

    def delete(self, relation: Stored, column: str, values: pa.ChunkedArray) -> None:
        """Take the rows out that have one of these values in a column; batches are not looked at."""
        key = self._known(relation)
        if len(values):
            given = pa.table({"value": values})
            where = f"{identifier(column)} IN (SELECT value FROM rows)"
            self._execute_over(given, f"DELETE FROM {self.table(key)} WHERE {where}")
            self.changed |= {key, filling_of(key)}

    def append_batches(self, batches: Mapping[Any, pa.Table]) -> None:
        """Add rows to many stored relations, stamped with this epoch, at about the cost of one.

        Small ones are kept as Arrow batches in one table of the book until the relation is rewritten;
        :meth:`Reading.since` gives them back.
        """
        small: dict[str, pa.Table] = {}
        for relation, given in batches.items():
            rows = self._conform(relation, given)
            if rows.num_rows > BATCH_ROWS:
                self.append(relation, rows)
            elif rows.num_rows:
                small[key_of(relation)] = rows.combine_chunks()
        if not small:
            return
        values: list[Any] = []
        for key, rows in small.items():
            values += [key, rows.num_rows, rows.to_batches()[0].serialize().to_pybytes()]
            self.written += rows.num_rows
            self.batches.setdefault(key, []).append(rows)
        # One statement with parameters: over an Arrow table it would take half as long again.
        places = ", ".join([f"(?, ?, ?, {self.epoch})"] * len(small))
        with self._altering():
            self.cursor.execute(f"INSERT INTO book.appended VALUES {places}", values)
        self.changed.update(small)

    def replace(self, relation: Stored, rows: pa.Table, *, altered: bool = False) -> None:
        """Swap the whole content, all of it stamped with this epoch.

        By default this is compaction: other rows, the same meaning, so ``last_change`` stays.
        """
        rows = self._conform(relation, rows)
        self._fill(key_of(relation), rows)
        self._execute(f"DELETE FROM book.appended WHERE relation = {literal(key_of(relation))}")
        self._renew(key_of(relation))
        if altered:
            self.changed.add(key_of(relation))

    def reshape(self, relation: Stored, schema: pa.Schema, rows: pa.Table | None = None) -> None:
        """Keep the relation's rows in other types, of the same columns; a value that does not fit is an error.

        Numbers that are new, at the end, are zero in all of them; or these are the rows, who mean the same.
        """
        key = self._known(relation)
        rows = self.scan(key) if rows is None else rows
        for field in list(schema)[rows.num_columns :]:
            rows = rows.append_column(field, pa.repeat(pa.scalar(0, field.type), rows.num_rows))
        rows = rows.cast(schema)
        self.schemas[key] = schema
        with self._altering():
            self.cursor.execute(
                "UPDATE book.relations SET arrow = ?::BLOB WHERE relation = ?", [schema.serialize().to_pybytes(), key]
            )
        self.replace(key, rows)

    def rename(self, relation: Stored, new: Stored) -> None:
        """Have a stored relation known by another reference, with all it holds."""
        key, other = self._known(relation), key_of(new)
        if self._is_bare(key):
            self.changed.add(bareness_of(other))
        else:
            self._execute(f"ALTER TABLE {self.table(key)} RENAME TO {identifier(other)}")
            self.changed.add(filling_of(other))
        for table in ("relations", "appended", "segments", "deleted"):
            self._execute(f"UPDATE book.{table} SET relation = {literal(other)} WHERE relation = {literal(key)}")
        self.schemas[other] = self.schemas[key]
        del self.schemas[key]
        self.changed |= {key, other, files_of(other)}
        self.changed.discard(bareness_of(key))
        self._renew(key)

    def respell(self, names: Mapping[str, Stored]) -> None:
        """Have the epochs so far speak of relations and counts by other references."""
        keys = {key_of(name): key_of(new) for name, new in names.items()}

        def spelled(key: str) -> str:
            mark = re.match(MARKS, key)
            return f"{mark[0]}{keys.get(key[mark.end() :], key[mark.end() :])}" if mark else keys.get(key, key)

        found = self._fetch("SELECT epoch, changed, counted FROM book.epochs")
        history = pa.table(
            {
                "epoch": pa.array([epoch for epoch, *_ in found], pa.int64()),
                "changed": [json.dumps([spelled(key) for key in json.loads(changed)]) for _, changed, _ in found],
                "counted": [
                    json.dumps([{**entry, "what": spelled(entry["what"])} for entry in json.loads(counted)])
                    for *_, counted in found
                ],
            }
        )
        with self._altering():
            self.cursor.execute(
                "UPDATE book.epochs SET changed = history.changed, counted = history.counted FROM history "
                "WHERE book.epochs.epoch = history.epoch"
            )
            for name, new in keys.items():
                self.cursor.execute(f"UPDATE book.counts SET what = {literal(new)} WHERE what = {literal(name)}")
        del history  # found by DuckDB in this frame

    def drop_relation(self, relation: Stored) -> None:
        """Remove a stored relation with its rows and segments."""
        key = self._known(relation)
        if not self._is_bare(key):
            self._execute(f"DROP TABLE {self.table(key)}")
        for table in ("relations", "appended"):
            self._execute(f"DELETE FROM book.{table} WHERE relation = {literal(key)}")
        self.remove_segments(key)
        del self.schemas[key]
        self.made.discard(key)
        self.changed.discard(bareness_of(key))
        # What is stored under this name later has nothing to do with what a reader may have kept of it.
        self.changed.add(key)
        self._renew(key)

    def rows(self, relation: Stored) -> int:
        """How many rows the database file holds for the relation; segments are not counted."""
        return super().rows(self._known(relation))

    def schema(self, relation: Stored) -> pa.Schema:
        """The schema the relation was created with."""
        return self.schemas[self._known(relation)]

    def _filled(self, key: str) -> int:
        return self.epoch if self.changed & {filling_of(key), rewrite_of(key)} else super()._filled(key)

    def _is_bare(self, key: str) -> bool:
        if bareness_of(key) in self.changed:
            return True
        return not self.changed & {filling_of(key), rewrite_of(key)} and super()._is_bare(key)

    def _recent(self, key: str, since: int) -> list[pa.Table] | None:
        return None if key in self.batches or key in self.renewed else super()._recent(key, since)

    @property
    def settled(self) -> int:
        return self.epoch - 1

    def last_change(self, relation: Stored) -> int:
        return self.epoch if key_of(relation) in self.changed else super().last_change(relation)

    def rewritten(self, relation: Stored) -> int:
        return self.epoch if rewrite_of(key_of(relation)) in self.changed else super().rewritten(relation)

    @contextmanager
    def _altering(self) -> Iterator[None]:
        self.altered = True
        with writing(self._segments.parent):
            yield

    def _may_know(self, key: str) -> bool:
        return files_of(key) not in self.changed

    def _renew(self, key: str) -> None:
        self.changed.add(rewrite_of(key))
        self.renewed.add(key)

    def _known(self, relation: Stored) -> str:
        key = key_of(relation)
        if key not in self.schemas:
            raise no_relation(relation)
        return key

    def _conform(self, relation: Stored, rows: pa.Table) -> pa.Table:
        schema = self.schemas[self._known(relation)]
        if rows.schema.equals(schema):
            return rows
        try:
            # By name, so that a producer may order its columns as it likes; a value that does not fit is an error.
            if sorted(rows.schema.names) != sorted(schema.names):
                raise ValueError(f"columns {rows.schema.names} given")
            return rows.select(schema.names).cast(schema)
        except (ValueError, pa.ArrowException) as error:
            raise StoreError(
                "SCHEMA_MISMATCH",
                f"rows do not fit relation {relation!r} ({', '.join(f'{f.name} {f.type}' for f in schema)}): {error}",
                hint="cast the rows to the relation's schema",
            ) from error

    def _fill(self, key: str, rows: pa.Table) -> None:
        # A new table instead of DELETE and INSERT: faster, and no dead rows for later scans to step over.
        # Snapshots that are open keep the old one.
        columns = ", ".join(identifier(name) for name in rows.schema.names)
        self.written += rows.num_rows
        self.changed.discard(bareness_of(key))
        self._execute_over(
            rows,
            f"CREATE OR REPLACE TABLE {self.table(key)} AS "
            f"SELECT {columns}, {self.epoch}::BIGINT AS {EPOCH_COLUMN} FROM rows",
        )

    def _execute_over(self, rows: pa.Table, sql: str) -> None:
        with self._altering():
            self.cursor.execute(sql)

    def _execute(self, sql: str) -> None:
        with self._altering():
            self.cursor.execute(sql)

    # -- segments --------------------------------------------------------------------------------

    def add_segment(self, relation: Stored, file: Path, rows: int, *, altered: bool = True) -> None:
        """Make a finished file, written where ``Store.new_segment`` said, part of the relation.

        ``altered=False`` when its rows were in the relation before (moved out of the tail, compacted).
        """
        if file.parent != self._segments:
            raise StoreError(
                "SEGMENT_MISPLACED", f"{file} is not in {self._segments}", hint="write it where new_segment() says"
            )
        if file.name not in self._checked:
            with writing(file):
                sync_file(file)
                self._checked[file.name] = checksum(file)
        size, check = self._checked[file.name]
        key = key_of(relation)
        self._execute(
            "INSERT INTO book.segments VALUES "
            f"({literal(key)}, {literal(file.name)}, {int(rows)}, {self.epoch}, {size}, {check})"
        )
        self._ledger.sound.add(file.name)
        self.added.append(file)
        self.doomed = [other for other in self.doomed if other != file]
        # Rows that are elsewhere now are no others, but who knows places of them is to notice.
        self.changed |= {key if altered else rewrite_of(key), files_of(key)}

    def share_segments(self, relation: Stored, of: Stored, files: Collection[str]) -> None:
        """Have the relation name files of another one too, from this epoch on."""
        if files:
            listed = ", ".join(map(literal, files))
            self._execute(
                f"INSERT INTO book.segments SELECT {literal(key_of(relation))}, file, rows, {self.epoch}, bytes, crc "
                f"FROM book.segments WHERE relation = {literal(key_of(of))} AND file IN ({listed})"
            )
            self.changed |= {key_of(relation), files_of(key_of(relation))}

    def remove_segments(
        self,
        relation: Stored,
        *,
        files: Collection[str] | None = None,
        until: int | None = None,
        altered: bool = True,
    ) -> int:
        """Take all files out of the relation, or these, or those it names since this epoch at the latest; says how
        many. Those that no other relation has are deleted when no open snapshot can need them."""
        where = f"WHERE relation = {literal(key_of(relation))}"
        self.altered = True
        if files is not None:
            where += f" AND file IN ({', '.join(map(literal, files)) or 'NULL'})"
        gone = self._fetch(
            f"DELETE FROM book.segments {where}{f' AND epoch <= {until}' if until is not None else ''} RETURNING file"
        )
        if gone:
            listed = ", ".join(literal(file) for (file,) in gone)
            self._execute(f"DELETE FROM book.deleted {where} AND file IN ({listed})")
            kept = {file for (file,) in self._fetch(f"SELECT file FROM book.segments WHERE file IN ({listed})")}
            self.doomed += [self._segments / file for (file,) in gone if file not in kept]
        if gone:
            key = key_of(relation)
            self.changed |= {key if altered else rewrite_of(key), files_of(key)}
        return len(gone)

    def delete_from_segments(self, relation: Stored, places: pa.Table) -> None:
        """Leave rows of the relation's files out from this epoch on: their ``file``, by name, and ``row``, from 0."""
        key = key_of(relation)
        if places.num_rows:
            self._execute_over(
                places.select(["file", "row"]),
                f"INSERT INTO book.deleted SELECT {literal(key)}, file, row, {self.epoch} FROM rows",
            )
            self.written += places.num_rows
            self.changed.add(key)

    # -- sources ---------------------------------------------------------------------------------

    def record(self, source: str, sequence: int) -> bool:
        """Commit a source's sequence number with this epoch; ``False`` if an epoch has it already."""
        entry = (source, sequence)
        if entry in self.sequences or self._ledger.committed(source, sequence):
            return False
        if not -(2**63) <= sequence < 2**63:
            raise StoreError("INVALID_SEQUENCE", f"sequence {sequence} of {source!r} is not a 64-bit integer")
        self.altered = True
        self.sequences.append(entry)
        return True

    def recorded(self, source: str, sequence: int) -> bool:
        """Whether this source's sequence is committed, or will be with this epoch."""
        return (source, sequence) in self.sequences or self._ledger.committed(source, sequence)

    # -- counts ----------------------------------------------------------------------------------

    def count(self, what: Stored, rows: int) -> None:
        """Add to a running count, with this epoch."""
        self.altered = True
        key = key_of(what)
        self.counted[key] = self.counted.get(key, 0) + rows

    def forget_count(self, what: Stored) -> None:
        """Start a count again from nothing."""
        self.counted[key_of(what)] = 0
        self.counted_anew.add(key_of(what))

    def epoch_row(self, at: int, label: str) -> str:
        """The statement that makes this transaction an epoch."""
        changed = sorted(self.changed)
        recorded = [{"source": source, "sequence": n} for source, n in self.sequences]
        counted = [{"what": what, "rows": n, "anew": what in self.counted_anew} for what, n in self.counted.items()]
        lists = ", ".join(literal(json.dumps(entries)) for entries in (changed, recorded, counted))
        return f"INSERT INTO book.epochs VALUES ({self.epoch}, {at}, {literal(label)}, {lists})"
