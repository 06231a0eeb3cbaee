"""apply_changes: changes that another database captured, made to a table in one commit.

Whatever brings them, rows with an operation column or Debezium's messages, they are first put in one form and one order
(``table/applying.py:Changes``). What the table's rows become of them is worked out under the lock of whoever changes
tables, so nothing comes between, and committed together with the highest sequence of each key and, for a streaming
DataFrame, the number of its batch: a change that comes again, or too late, finds itself there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.wording import counted
from headrace.catalog import Table, to_json
from headrace.errors import CatalogError, DataError
from headrace.input.rows import to_arrow
from headrace.input.wider import type_of_sequence
from headrace.runtime import Runtime
from headrace.statement.captured import Captured, Captures, Told, bound, check_table, keys_of
from headrace.statement.load import SentBatch
from headrace.store import Snapshot, Transaction
from headrace.table import changing, constraints
from headrace.table.applying import TRUNCATE, UPSERT, Applying, Changes, Outcome
from headrace.table.dimension import START, Versions
from headrace.table.sequences import ROLE, Sequences
from headrace.types import VOID, Field, from_arrow


@dataclass(frozen=True)
class Applied:
    """What became of the changes of one call."""

    table: str
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    """Rows that were upserted and were so already."""
    deleted: int = 0
    absent: int = 0
    """Deletes of rows that were not there."""
    late: int = 0
    """Changes with a lower sequence than what was applied to their key before: ignored, or with ``scd=2`` put in their
    place in the history."""
    tombstones: int = 0
    """Told many deleted keys the table now remembers, so that late changes do not bring them back."""

    @property
    def upserted(self) -> int:
        return self.inserted + self.updated + self.unchanged

    def __str__(self) -> str:
        """
        >>> print(Applied("t", inserted=2, late=1)), print(Applied("t"))
        2 rows inserted, 1 change late in t
        nothing changed in t
        (None, None)
        """
        said = [
            f"{counted(n, noun)} {what}".rstrip()
            for n, noun, what in (
                (self.inserted, "row", "inserted"),
                (self.updated, "row", "updated"),
                (self.unchanged, "row", "as before"),
                (self.deleted, "row", "deleted"),
                (self.absent, "delete", "of absent rows"),
                (self.late, "change", "late"),
            )
            if n
        ]
        return f"{', '.join(said) or 'nothing changed'} in {self.table}"


class Applier:
    """Applies captured changes to tables."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._captures = Captures(runtime)

    def apply(self, table: Table, data: Any, how: Told, initial: Any = None, batch: SentBatch | None = None) -> Applied:
        """Apply changes, in one epoch; a ``batch`` that is committed already changes nothing."""
        check_table(table, how)
        keys = keys_of(table, how)
        if batch is not None:
            with self._runtime.store.read() as snapshot:
                if snapshot.recorded(batch.source, batch.sequence):
                    return Applied(table.name)
        if initial is None and isinstance(data, list) and not data:
            return Applied(table.name)  # it does not even say which columns there are
        read = self._captures.read(table, data, how, keys)
        with self._runtime.tables_lock:
            self._runtime.catalog.require_there(table)
            now = self._runtime.catalog.table_at(table.number)
            if now is None or now.columns != table.columns:
                raise CatalogError("TABLE_CHANGED", f"{table.name} was altered meanwhile", hint="try again")
            begins = None
            if initial is not None and ROLE not in now.owns:
                begins = self._captures.snapshot(now, self._captures.given(now, initial, how), how, keys)
            changing.identify(self._runtime, now)
            return self._apply(now, how, keys, read, begins, batch)

    def begins(self, table: Table, initial: Any, how: Told) -> pa.Table | None:
        """The rows a table is to begin with, read once and looked at, to be given to each :meth:`apply` of a stream."""
        check_table(table, how)
        keys = keys_of(table, how)
        if initial is None or ROLE in table.owns:
            return None
        self._captures.snapshot(table, rows := self._captures.given(table, initial, how), how, keys)
        return rows[0]

    # Under the lock

    def _apply(
        self,
        table: Table,
        how: Told,
        keys: Sequence[Field],
        read: Captured,
        begins: Captured | None,
        batch: SentBatch | None,
    ) -> Applied:
        with self._runtime.store.read() as snapshot:
            if begins is not None and changing.count(snapshot, table):
                raise DataError(
                    "APPLY_CHANGES_INITIAL_NOT_EMPTY",
                    f"{table.name} has rows already, so it cannot begin with others",
                    hint="TRUNCATE it first, or leave out initial",
                )
            sequences = Sequences.of(snapshot, table, history=how.scd == 2)
            is_new = sequences is None
            if sequences is None:
                types = self._types(table, how, read, begins)
                sequences = Sequences.new(self._runtime.store.new_number(), keys, types, history=how.scd == 2)
            else:
                _check_same(table, sequences, keys, how)
                keys = sorted(keys, key=lambda f: sequences.keys.index(f.id))
            changes = self._changes(snapshot, table, sequences, keys, how, [r for r in (begins, read) if r is not None])
            way = Versions if how.scd == 2 else Applying
            outcome = way(self._runtime, snapshot, table, sequences, is_new, changes).outcome()
        constraints.check(self._runtime, table, outcome.change.new)
        tombstones = self._commit(table, sequences, is_new, how, outcome, batch)
        return Applied(table.name, **outcome.counts, tombstones=tombstones)

    def _commit(
        self,
        table: Table,
        sequences: Sequences,
        is_new: bool,
        how: Told,
        outcome: Outcome,
        batch: SentBatch | None,
    ) -> int:
        runtime, tombstones = self._runtime, 0
        noted = replace(outcome.noted, keep=how.tombstones)
        before, catalog = runtime.writer_version, runtime.catalog
        if is_new:
            runtime.store.refuse_in_batch(
                f"the first apply_changes to {table.name}", "do it before the batch: it changes the table's definition"
            )
            owning = replace(table, owns={**table.owns, ROLE: sequences.number})
            catalog = catalog.with_relation(owning)

        def work(tx: Transaction) -> bool:
            nonlocal tombstones
            if batch is not None and not tx.record(batch.source, batch.sequence):
                return False
            if is_new:
                tx.redefine(table.name, to_json(owning))
                runtime.writer_version = catalog.version
            tombstones = sequences.begin(tx, noted) if is_new else sequences.note(tx, noted)
            return bool(batch is not None or tx.changed or outcome.change.places.num_rows + outcome.change.new.num_rows)

        def settled() -> None:
            if is_new:
                runtime.catalog = catalog

        try:
            changing.commit(runtime, table, outcome.change, f"changes of {table.name}", changing.Beside(work, settled))
        finally:
            if is_new and runtime.catalog is not catalog:
                runtime.writer_version = before
        return tombstones

    def _types(self, table: Table, how: Told, read: Captured, begins: Captured | None) -> list[pa.DataType]:
        """The types the sequences of a table are kept in, from the first on."""
        if how.scd == 2:
            return [bound(table, START).type.arrow]
        source = read if read.sequences or begins is None else begins
        found = []
        for name, column in zip(how.order, source.sequences, strict=False):
            type = from_arrow(column.type)
            if type is None or type.is_nested or type == VOID:
                raise DataError(
                    "APPLY_CHANGES_SEQUENCE_TYPE",
                    f"{name} is {column.type}, which does not order changes",
                    hint="name a column of numbers, text or times, or several: sequence_by=['file', 'pos']",
                )
            found.append(type_of_sequence(type).arrow)
        return found or [pa.int64()] * len(how.order)

    def _changes(
        self,
        snapshot: Snapshot,
        table: Table,
        sequences: Sequences,
        keys: Sequence[Field],
        how: Told,
        parts: Sequence[Captured],
    ) -> Changes:
        """All changes in one order."""
        columns = []
        for i, type in enumerate(sequences.types):
            columns.append(pa.chunked_array([c for p in parts for c in _sequence(p, i, type, how).chunks], type))
        rows = pa.concat_tables([p.rows for p in parts])
        ops = np.concatenate([p.ops for p in parts])
        names = tuple(f.name for f in keys)
        for name in names:
            nulls = rows.column(name).is_null().to_numpy() & (ops != TRUNCATE)
            if nulls.any():
                raise DataError(
                    "APPLY_CHANGES_NULL_KEY",
                    f"row {int(nulls.argmax()) + 1}: {name} is NULL, and is a key",
                    hint="every change but a truncate says which row it is of",
                )
        order = pa.table({f"s{i}": column for i, column in enumerate(columns)})
        if columns and not _is_sorted(columns):
            by = ", ".join(f"{name} NULLS FIRST" for name in order.column_names)
            n = pa.array(np.arange(len(ops)))
            text = f"SELECT n FROM given ORDER BY {by}, n"
            taken = snapshot.query(text, given=order.append_column("n", n)).column("n")
            rows, ops, order = rows.take(taken), ops[taken.to_numpy()], order.take(taken)
        lacked = tuple(f for f in table.columns if all(f in p.lacked for p in parts))
        changes = Changes(names, rows, ops, order.columns, how.ignore_null_updates, lacked)
        if not all(p.ordered for p in parts):
            _refuse_ties(snapshot, changes)
        return changes


def _check_same(table: Table, sequences: Sequences, keys: Sequence[Field], how: Told) -> None:
    """An error unless keys and sequences are as in the calls before."""
    names = {f.id: f.name for f in table.columns}
    if sorted(sequences.keys) != sorted(f.id for f in keys):
        known = ", ".join(names.get(id, "a column that is gone") for id in sequences.keys)
        raise DataError(
            "APPLY_CHANGES_KEYS_DIFFER",
            f"changes were applied to {table.name} by {known}, and not by {', '.join(f.name for f in keys)}",
            hint="give the same keys, or begin again with a new table",
        )
    if len(sequences.types) != len(how.order):
        raise DataError(
            "APPLY_CHANGES_SEQUENCE_DIFFERS",
            f"changes of {table.name} were ordered by {counted(len(sequences.types), 'column')}, "
            f"and not by {len(how.order)}",
            hint="give the same sequence_by, or begin again with a new table",
        )


def _sequence(read: Captured, at: int, type: pa.DataType, how: Told) -> pa.ChunkedArray:
    """A column of the changes' sequence, in the type it is kept in."""
    if at >= len(read.sequences):  # the rows a table begins with: before all
        return pa.chunked_array([pa.nulls(len(read.ops), type)])
    name, wanted = how.order[at], from_arrow(type)
    assert wanted is not None
    try:
        found = to_arrow(pa.table({name: read.sequences[at]}), (Field(name, wanted),))
    except DataError as error:
        raise DataError(
            "APPLY_CHANGES_SEQUENCE_TYPE", error.message, hint=f"changes are ordered by {name} as {wanted.sql}"
        ) from None
    assert isinstance(found, pa.Table)
    column = found.column(0)
    if column.null_count:
        raise DataError(
            "APPLY_CHANGES_NULL_SEQUENCE",
            f"row {int(column.is_null().to_numpy().argmax()) + 1}: {name} is NULL, and orders the changes",
            hint="every change has a sequence; name another column with sequence_by",
        )
    return column


def _is_sorted(columns: Sequence[pa.ChunkedArray]) -> bool:
    """Whether changes are in order as they come; said of one plain column only."""
    if len(columns) > 1 or columns[0].null_count or pa.types.is_floating(columns[0].type):
        return False
    column = columns[0].combine_chunks()
    return bool(pc.all(pc.less_equal(column.slice(0, max(len(column) - 1, 0)), column.slice(1)), min_count=0).as_py())


def _refuse_ties(snapshot: Snapshot, changes: Changes) -> None:
    """Two changes of one key with one sequence, which do not say the same, and of which none is the later one."""
    names, order = ", ".join(changes.key_names), ", ".join(changes.order)
    wide = pa.table({f"c{i}": column for i, column in enumerate(changes.rows.columns)})
    text = ", ".join(f"w.{name}" for name in wide.column_names)
    found = snapshot.query(
        f"WITH tied AS (SELECT {names}, {order} FROM slim WHERE op < {TRUNCATE} GROUP BY {names}, {order} "
        f"HAVING count(*) > 1) SELECT {names}, {order} FROM (SELECT s.*, w.* FROM slim AS s SEMI JOIN tied "
        f"USING ({names}, {order}) JOIN wide AS w ON w.number = s.n) AS w GROUP BY {names}, {order} "
        f"HAVING count(DISTINCT ROW(op, CASE WHEN op = {UPSERT} THEN ROW({text}) END)) > 1 LIMIT 1",
        slim=changes.slim,
        wide=wide.append_column("number", pa.array(np.arange(len(changes.ops)))),
    )
    if found.num_rows:
        row = found.to_pylist()[0]
        values = ", ".join(f"{name} = {row[k]}" for name, k in zip(changes.keys, changes.key_names, strict=True))
        raise DataError(
            "APPLY_CHANGES_TIE",
            f"two different changes of {values} have the sequence {', '.join(str(row[s]) for s in changes.order)}",
            hint="rows of a DataFrame have no order: name a column more that tells which is later, "
            "sequence_by=['lsn', 'number']",
        )
