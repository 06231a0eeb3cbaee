"""apply_changes: changes that another database captured, made to a table in one commit.

Whatever brings them, rows with an operation column or Debezium's messages, they are first put in one form and one order
(``table/applying.py:Changes``). What the table's rows become of them is worked out under the lock of whoever changes
tables, so nothing comes between, and committed together with the highest sequence of each key and, for a streaming
DataFrame, the number of its batch: a change that comes again, or too late, finds itself there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.boundary import text_given
from headrace.base.interrupts import at_once
from headrace.base.wording import counted
from headrace.catalog import Catalog, Table, to_json
from headrace.engine.session import cancel_with_the_statement
from headrace.errors import CatalogError, DataError, HeadraceError, NotYetSupported, SqlError
from headrace.input import debezium
from headrace.input.rows import to_arrow
from headrace.input.wider import type_of_sequence, widened
from headrace.plan.nodes import Leaf, leaves
from headrace.plan.rules import optimize
from headrace.runtime import Runtime
from headrace.sql import changes as c
from headrace.sql.binder import Binder
from headrace.sql.grammar import parse_expression, parse_query
from headrace.sql.literals import interval_text
from headrace.statement.load import SentBatch, is_frame, spark_failures
from headrace.store import Snapshot, Transaction
from headrace.stream.frames import conform_frame
from headrace.table import changing, query
from headrace.table.applying import DELETE, TRUNCATE, UPSERT, Applying, Changes, Outcome
from headrace.table.history import END, START, Versions
from headrace.table.sequences import ROLE, Sequences
from headrace.types import BIGINT, VOID, Field, Schema, arrow_schema, from_arrow, of_spark, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPS = {
    **dict.fromkeys(("i", "insert", "u", "update", "c", "r"), UPSERT),
    **dict.fromkeys(("d", "delete"), DELETE),
    **dict.fromkeys(("t", "truncate"), TRUNCATE),
}
"""What the values of an operation column say."""
_DEBEZIUM_ORDER = ("source.lsn",)
_NUMBER = "__headrace_row"


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
    """How many deleted keys the table now remembers, so that late changes do not bring them back."""

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


@dataclass(frozen=True)
class How:
    """What a call says of its changes."""

    keys: tuple[str, ...] = ()
    op_column: str | None = None
    sequence_by: tuple[str, ...] = ()
    delete_when: str | None = None
    truncate_when: str | None = None
    scd: int = 1
    format: str | None = None
    columns: tuple[str, ...] = ()
    except_columns: tuple[str, ...] = ()
    ignore_null_updates: bool = False
    tombstones: timedelta | None = None

    @staticmethod
    def of(given: Mapping[str, Any]) -> How:
        """The arguments as they were given, checked as far as they say something by themselves."""
        texts = ("op_column", "delete_when", "truncate_when", "format")
        names = ("keys", "sequence_by", "columns", "except_columns")
        found = {name: None if given[name] is None else text_given(given[name], name) for name in texts}
        lists = {name: _names(name, given[name]) for name in names}
        how = How(**found, **lists, scd=given["scd"], tombstones=_span(given["tombstones"]))  # type: ignore[arg-type]
        how = replace(how, ignore_null_updates=bool(given["ignore_null_updates"]))
        how._check()
        return how

    def _check(self) -> None:
        if isinstance(self.scd, bool) or self.scd not in (1, 2):
            raise _usage(f"scd is {self.scd!r}", "1 keeps the last version of a row, 2 all of them")
        if self.format not in (None, "debezium"):
            raise _usage(f"format is {self.format!r}", "it is 'debezium', or left out")
        if self.columns and self.except_columns:
            raise _usage("columns and except_columns are both given", "give one of them")
        if self.format is not None and (self.op_column or self.delete_when or self.truncate_when):
            raise _usage(
                "Debezium's messages say themselves what each change does",
                "leave out op_column, delete_when and truncate_when",
            )
        if self.scd == 2 and self.ignore_null_updates:
            raise NotYetSupported("ignore_null_updates in a history (scd=2)", hint="leave it out, or take scd=1")
        if self.scd == 2 and self.format is None and len(self.sequence_by) != 1:
            raise _usage("a history (scd=2) needs one column that orders its versions", "name it: sequence_by='lsn'")

    @property
    def order(self) -> tuple[str, ...]:
        return self.sequence_by or (_DEBEZIUM_ORDER if self.format == "debezium" else ())

    def takes(self, name: str) -> bool:
        """Whether a column of the changes goes into the table."""
        listed = [n.lower() for n in self.columns or self.except_columns]
        return (name.lower() in listed) == bool(self.columns) if listed else True


def _usage(what: str, hint: str) -> HeadraceError:
    return HeadraceError("USAGE", what, hint=hint)


def _names(what: str, given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, list | tuple):
        raise _usage(f"{what} is {type(given).__name__}", "give the name of a column, or a list of names")
    return tuple(text_given(name, f"a name of {what}") for name in given)


def _span(given: Any) -> timedelta | None:
    if given is None or isinstance(given, timedelta):
        return given
    length = interval_text(text_given(given, "tombstones"))
    if length is None or length.type.name != "interval_time" or length.value <= 0:
        raise _usage(f"tombstones is {given!r}", "say for how long deletes are remembered: '30 days'")
    return timedelta(microseconds=length.value)


@dataclass(frozen=True)
class _Read:
    """Changes as they came: the columns that go into the table, what each does, and in what order."""

    rows: pa.Table
    ops: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    sequences: tuple[pa.ChunkedArray, ...]
    ordered: bool = True
    """Whether their order among themselves means something."""


class Applier:
    """Applies captured changes to tables."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def apply(self, table: Table, data: Any, how: How, initial: Any = None, batch: SentBatch | None = None) -> Applied:
        """Apply changes, in one epoch; a ``batch`` that is committed already changes nothing."""
        _check_table(table, how)
        keys = _keys(table, how)
        if batch is not None:
            with self._runtime.store.read() as snapshot:
                if snapshot.recorded(batch.source, batch.sequence):
                    return Applied(table.name)
        if initial is None and isinstance(data, list) and not data:
            return Applied(table.name)  # it does not even say which columns there are
        read = self._read(table, data, how, keys)
        with self._runtime.tables_lock:
            self._runtime.catalog.require_there(table)
            now = self._runtime.catalog.table_at(table.number)
            if now is None or now.columns != table.columns:
                raise CatalogError("TABLE_CHANGED", f"{table.name} was altered meanwhile", hint="try again")
            begins = None
            if initial is not None and ROLE not in now.owns:
                begins = self._snapshot(now, self._given(now, initial, how), how, keys)
            changing.identify(self._runtime, now)
            return self._apply(now, how, keys, read, begins, batch)

    def begins(self, table: Table, initial: Any, how: How) -> pa.Table | None:
        """The rows a table is to begin with, read once and looked at, to be given to each :meth:`apply` of a stream."""
        _check_table(table, how)
        keys = _keys(table, how)
        if initial is None or ROLE in table.owns:
            return None
        self._snapshot(table, rows := self._given(table, initial, how), how, keys)
        return rows[0]

    # Under the lock

    def _apply(
        self,
        table: Table,
        how: How,
        keys: Sequence[Field],
        read: _Read,
        begins: _Read | None,
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
            outcome = way(snapshot, table, sequences, is_new, changes).outcome()
        changing.check(table, outcome.change.new)
        tombstones = self._commit(table, sequences, is_new, how, outcome, batch)
        return Applied(table.name, **outcome.counts, tombstones=tombstones)

    def _commit(
        self,
        table: Table,
        sequences: Sequences,
        is_new: bool,
        how: How,
        outcome: Outcome,
        batch: SentBatch | None,
    ) -> int:
        runtime, tombstones = self._runtime, 0
        noted = replace(outcome.noted, keep=how.tombstones)
        before, catalog = runtime.writer_version, runtime.catalog
        if is_new:
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
            runtime.catalog = catalog

        # Rows of a history have no key of their own, whatever its table says.
        by_key = how.scd == 1 and {f.name for f in table.columns if f.id in sequences.keys} == set(table.primary_key)
        beside = changing.Beside(work, by_key, settled)
        try:
            changing.commit(runtime, table, outcome.change, f"changes of {table.name}", beside)
        finally:
            if runtime.catalog is not catalog:
                runtime.writer_version = before
        return tombstones

    def _types(self, table: Table, how: How, read: _Read, begins: _Read | None) -> list[pa.DataType]:
        """The types the sequences of a table are kept in, from the first on."""
        if how.scd == 2:
            return [_bound(table, START).type.arrow]
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
        how: How,
        parts: Sequence[_Read],
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
        changes = Changes(names, rows, ops, order.columns, how.ignore_null_updates)
        if not all(p.ordered for p in parts):
            _refuse_ties(snapshot, changes)
        return changes

    # Reading

    def _snapshot(self, table: Table, given: tuple[pa.Table, Schema], how: How, keys: Sequence[Field]) -> _Read:
        """The rows a table begins with: inserts before all changes, unless they have a sequence."""
        plain = replace(how, op_column=None, delete_when=None, truncate_when=None, format=None, sequence_by=())
        names = {f.name.lower() for f in given[1]}
        if how.order and all(name.lower() in names for name in how.order):
            plain = replace(plain, sequence_by=how.order)
        left = [n for n in (how.op_column, *how.order) if n is not None]
        read = self._plain(table, given, plain, keys, left)
        names_of_keys = [f.name for f in keys]
        if read.rows.select(names_of_keys).group_by(names_of_keys).aggregate([]).num_rows < read.rows.num_rows:
            raise DataError(
                "APPLY_CHANGES_KEY_NOT_UNIQUE",
                f"of the rows {table.name} is to begin with, several have one {', '.join(names_of_keys)}",
                hint="a snapshot has each row once",
            )
        return read

    def _read(self, table: Table, data: Any, how: How, keys: Sequence[Field]) -> _Read:
        if how.format == "debezium":
            return self._debezium(table, data, how, keys)
        if is_frame(data) and not how.sequence_by:
            raise DataError(
                "APPLY_CHANGES_NO_SEQUENCE",
                "rows of a DataFrame have no order of their own",
                hint="name the column that orders them: sequence_by='lsn'",
            )
        return replace(self._plain(table, self._given(table, data, how), how, keys), ordered=not is_frame(data))

    def _given(self, table: Table, data: Any, how: How) -> tuple[pa.Table, Schema]:
        """The rows in the types of the table's columns, others as they come."""
        if is_frame(data):
            data, fields = _framed(data, table.columns)
        else:
            data, fields = widened(data, table.columns, how.except_columns)
        return self._as_arrow(data, fields), fields

    def _as_arrow(self, data: Any, fields: Schema) -> pa.Table:
        with at_once():
            rows = to_arrow(data, fields, zone=self._runtime.settings.time_zone)
        return rows if isinstance(rows, pa.Table) else rows.read_all()

    def _plain(
        self, table: Table, given: tuple[pa.Table, Schema], how: How, keys: Sequence[Field], left: Sequence[str] = ()
    ) -> _Read:
        """Changes as rows; columns that are ``left`` out are not asked for."""
        rows, fields = given
        names = {f.name.lower(): f.name for f in fields}
        special = [n for n in (how.op_column, *how.sequence_by) if n is not None]
        for name in (*special, *how.columns):
            if name.lower() not in names:
                raise _no_column("the changes have", name, [f.name for f in fields])
        ops = self._ops(table, rows, fields, how)
        sequences = tuple(rows.column(names[name.lower()]) for name in how.sequence_by)
        return _Read(_in_table(table, rows, how, keys, [*special, *left]), ops, sequences)

    def _ops(
        self, table: Table, rows: pa.Table, fields: Schema, how: How
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """What each row does: as a condition says, else as the operation column does."""
        ops = np.zeros(rows.num_rows, np.int64)
        decided = np.zeros(rows.num_rows, np.bool_)
        for op, condition in ((TRUNCATE, how.truncate_when), (DELETE, how.delete_when)):
            if condition is not None:
                chosen = self._where(table, rows, fields, condition) & ~decided
                ops[chosen], decided = op, decided | chosen
        if how.op_column is not None:
            column = rows.column(next(f.name for f in fields if f.name.lower() == how.op_column.lower()))
            coded = _coded(how.op_column, column, decided)
            ops[~decided] = coded[~decided]
        return ops

    def _where(
        self, table: Table, rows: pa.Table, fields: Schema, condition: str
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """For which rows a condition is true."""
        schema = (*fields, Field(_NUMBER, BIGINT))
        numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
        catalog = Catalog().with_relation(Table(table.name, schema, number=table.number))
        item = parse_query(f"SELECT 1 FROM {quote(table.name)}").args["from_"].this
        try:
            tree = c.select([c.column_of(table.name, _NUMBER)], item, parse_expression(condition))
            plan = optimize(Binder(catalog, self._runtime.analyzer()).query(tree))
        except SqlError as error:
            error.hint = error.hint or "it is a condition over the columns of the changes: delete_when=\"op = 'D'\""
            raise
        refs = {leaf.ref: numbered for leaf in leaves(plan) if isinstance(leaf, Leaf)}
        found = query.run_now(self._runtime, plan, query.Leaves(refs, {}))
        chosen = np.zeros(rows.num_rows, np.bool_)
        chosen[found.column(0).to_numpy()] = True
        return chosen

    def _debezium(self, table: Table, data: Any, how: How, keys: Sequence[Field]) -> _Read:
        given = _messages(data, keys, how.order) if is_frame(data) else self._as_arrow(*widened(data, ()))
        own, zone = _own_columns(table, how), self._runtime.settings.time_zone
        found = debezium.unwrap(given, own, [f.name for f in keys], how.order, zone)
        rows = self._as_arrow(*widened(found.rows, table.columns, how.except_columns))
        ops = _coded("op", found.ops, np.zeros(len(found.ops), np.bool_))
        return _Read(_in_table(table, rows, how, keys, ()), ops, tuple(found.sequences), not is_frame(data))


# What the arguments mean for a table


def _check_table(table: Table, how: How) -> None:
    versioned = [name for name in (START, END) if any(f.name.upper() == name for f in table.columns)]
    if how.scd == 1 and len(versioned) == 2:
        raise CatalogError(
            "APPLY_CHANGES_NOT_A_HISTORY",
            f"{table.name} has {START} and {END}: it is made for a history",
            hint="give scd=2, or apply the changes to a table without these columns",
        )
    if how.scd == 2 and len(versioned) < 2:
        raise CatalogError(
            "APPLY_CHANGES_NOT_A_HISTORY",
            f"{table.name} has no column {' and no '.join(n for n in (START, END) if n not in versioned)}",
            hint=f"make it with both, in the type of what orders the changes: CREATE TABLE … (…, {START} BIGINT, "
            f"{END} BIGINT)",
        )
    if how.scd == 2 and _bound(table, START).type != _bound(table, END).type:
        raise CatalogError(
            "APPLY_CHANGES_NOT_A_HISTORY",
            f"{START} is {_bound(table, START).type.sql}, {END} is {_bound(table, END).type.sql}",
            hint="both have the type of what orders the changes",
        )


def _bound(table: Table, name: str) -> Field:
    return next(f for f in table.columns if f.name.upper() == name)


def _own_columns(table: Table, how: How) -> Schema:
    """The columns that changes may fill."""
    bounds = (START, END) if how.scd == 2 else ()
    return tuple(f for f in table.columns if f.name.upper() not in bounds and how.takes(f.name))


def _keys(table: Table, how: How) -> tuple[Field, ...]:
    names = how.keys or tuple(k for k in table.primary_key if how.scd == 1 or k.upper() != START)
    if not names:
        raise DataError(
            "APPLY_CHANGES_NO_KEYS",
            f"{table.name} has no primary key",
            hint="say which columns tell its rows apart: keys=['id']",
        )
    known = {f.name.lower(): f for f in _own_columns(table, replace(how, columns=(), except_columns=()))}
    found: list[Field] = []
    for name in names:
        column = known.get(name.lower())
        if column is None:
            raise _no_column(f"{table.name} has", name, [f.name for f in known.values()])
        if column.type.is_nested:
            raise NotYetSupported(f"a key of type {column.type.sql} ({column.name})", hint="key rows by plain columns")
        if column in found:
            raise DataError("REPEATED_COLUMN", f"keys names {column.name} twice", hint="name it once")
        found.append(column)
    return tuple(found)


def _no_column(who: str, name: str, known: Iterable[str]) -> DataError:
    return DataError("UNRESOLVED_COLUMN", f"{who} no column {name}", hint=f"there are {', '.join(known)}")


def _check_same(table: Table, sequences: Sequences, keys: Sequence[Field], how: How) -> None:
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


def _in_table(table: Table, rows: pa.Table, how: How, keys: Sequence[Field], special: Sequence[str]) -> pa.Table:
    """The rows in the table's columns, as what they do not say is NULL; an error for columns it does not have."""
    known = {f.name.lower() for f in _own_columns(table, replace(how, columns=(), except_columns=()))}
    passed = {name.lower() for name in special}
    others = [n for n in rows.column_names if how.takes(n) and n.lower() not in known | passed]
    if others:
        raise DataError(
            "UNKNOWN_COLUMN",
            f"{table.name} has no column {', '.join(others)}",
            hint=f"leave them out: except_columns={others!r}, or add them to the table",
        )
    for key in keys:
        if key.name not in rows.column_names or not how.takes(key.name):
            raise _no_column("the changes have", key.name, rows.column_names)
    own = {f.name for f in _own_columns(table, how)}
    columns = [
        rows.column(f.name) if f.name in own and f.name in rows.column_names else pa.nulls(rows.num_rows, f.type.arrow)
        for f in table.columns
    ]
    return pa.table(columns, schema=arrow_schema(table.columns))


def _coded(
    name: str, column: pa.ChunkedArray, decided: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """What the values of an operation column say."""
    if not pa.types.is_string(column.type):
        raise DataError(
            "APPLY_CHANGES_UNKNOWN_OP",
            f"{name} is {column.type}, and not text",
            hint="say what it means: delete_when='op = 2', and leave out op_column",
        )
    codes = pc.index_in(pc.utf8_lower(column), pa.array(list(_OPS)))
    unknown = codes.is_null().to_numpy() & ~decided
    if unknown.any():
        at = int(unknown.argmax())
        raise DataError(
            "APPLY_CHANGES_UNKNOWN_OP",
            f"row {at + 1}: {name} is {column[at].as_py()!r}",
            hint=f"it is one of {', '.join(_OPS)}; for others leave out op_column and say what deletes: "
            f"delete_when=\"{name} = 'X'\"",
        )
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    found = np.array(list(_OPS.values())).take(pc.fill_null(codes, 0).to_numpy())
    return found


def _sequence(read: _Read, at: int, type: pa.DataType, how: How) -> pa.ChunkedArray:
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


# DataFrames


def _framed(frame: DataFrame, known: Schema) -> tuple[pa.Table, Schema]:
    """A DataFrame's rows, in the types of the columns that are known."""
    columns = {f.name.lower(): f for f in known}
    fields = []
    for f in frame.schema.fields:
        own = columns.get(f.name.lower())
        fields.append(Field(own.name, own.type) if own is not None else Field(f.name, of_spark(f.dataType)))
    return _collected(conform_frame(frame, Table("the changes", tuple(fields)))), tuple(fields)


def _messages(frame: DataFrame, keys: Sequence[Field], order: Sequence[str]) -> pa.Table:
    """Debezium's messages: of columns of structs, what is needed of them."""
    from pyspark.sql.functions import col, struct, when

    types: dict[str, Any] = {f.name: f.dataType for f in frame.schema.fields}
    for around in ("value", "payload"):
        if around in types and types[around].typeName() == "struct":
            inner = {f.name: f.dataType for f in types[around].fields}
            beside = [col(quote(name)) for name in types if name not in inner]
            frame = frame.select(*(col(f"{around}.{quote(name)}") for name in inner), *beside)
            types = {**types, **inner}
    wanted = {name.split(".")[0] for name in order}
    parts = {
        "before": {f.name.lower() for f in keys} | {name.lower() for name in order},
        "source": {name.split(".")[1] for name in order if name.startswith("source.")},
    }
    columns = []
    for name, type in types.items():
        column = col(quote(name))
        if type.typeName() == "binary" and name == "value":
            column = column.cast("string").alias(name)
        elif name in parts and type.typeName() == "struct":
            inside = [f.name for f in type.fields if f.name.lower() in parts[name] or f.name in parts[name]]
            if not inside:
                continue
            given = struct(*(col(f"{name}.{quote(part)}").alias(part) for part in inside))
            column = when(column.isNotNull(), given).alias(name)
        elif name not in wanted and name not in ("op", "after", "before", "value"):
            continue
        columns.append(column)
    return _collected(frame.select(*columns))


def _collected(frame: DataFrame) -> pa.Table:
    cancel_with_the_statement(frame.sparkSession)
    with spark_failures():
        return frame.toArrow()
