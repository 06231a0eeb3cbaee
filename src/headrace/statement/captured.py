"""Captured changes as they come in: what a call says of them, and the one form they are put in.

Rows say what they do in a column, by conditions, or as Debezium's messages (``input/debezium.py``); they come in as
whatever ``db.insert`` takes, or as DataFrames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.base.boundary import text_given
from headrace.base.interrupts import at_once
from headrace.base.lacking import lacking_rows
from headrace.catalog import Catalog, Table
from headrace.engine.columns import one_chunk
from headrace.engine.session import cancel_with_the_statement
from headrace.errors import CatalogError, DataError, HeadraceError, NotYetSupported, SqlError
from headrace.input import debezium
from headrace.input.rows import to_arrow
from headrace.input.wider import widened
from headrace.plan.nodes import Leaf, leaves
from headrace.plan.rules import optimize
from headrace.runtime import Runtime
from headrace.sql import changes as c
from headrace.sql.binder import Binder
from headrace.sql.grammar import parse_expression, parse_query
from headrace.sql.literals import interval_text
from headrace.statement.load import is_frame, spark_failures
from headrace.stream.frames import conform_frame
from headrace.table import query
from headrace.table.applying import DELETE, TRUNCATE, UPSERT, Flags, Ints
from headrace.table.dimension import END, START
from headrace.types import BIGINT, Field, Schema, arrow_schema, of_spark, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPS = {
    **dict.fromkeys(("i", "insert", "u", "update", "c", "r"), UPSERT),
    **dict.fromkeys(("d", "delete"), DELETE),
    **dict.fromkeys(("t", "truncate"), TRUNCATE),
}
"""What the values of an operation column say."""
_UNKNOWN = -1
_DEBEZIUM_ORDER = ("source.lsn",)
_NUMBER = "__headrace_row"


@dataclass(frozen=True)
class Told:
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
    def of(given: Mapping[str, Any]) -> Told:
        """The arguments as they were given, checked as far as they say something by themselves."""
        texts = ("op_column", "delete_when", "truncate_when", "format")
        names = ("keys", "sequence_by", "columns", "except_columns")
        found = {name: None if given[name] is None else text_given(given[name], name) for name in texts}
        lists = {name: _names(name, given[name]) for name in names}
        how = Told(**found, **lists, scd=given["scd"], tombstones=_span(given["tombstones"]))  # type: ignore[arg-type]
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
class Captured:
    """Changes as they came: the columns that go into the table, what each does, and in what order."""

    rows: pa.Table
    ops: Ints
    sequences: tuple[pa.ChunkedArray, ...]
    ordered: bool = True
    """Whether their order among themselves means something."""
    lacked: Schema = ()
    """The columns they come without."""


class Captures:
    """Reads captured changes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def snapshot(self, table: Table, given: tuple[pa.Table, Schema], how: Told, keys: Sequence[Field]) -> Captured:
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

    def read(self, table: Table, data: Any, how: Told, keys: Sequence[Field]) -> Captured:
        if how.format == "debezium":
            return self._debezium(table, data, how, keys)
        if is_frame(data) and not how.sequence_by:
            raise DataError(
                "APPLY_CHANGES_NO_SEQUENCE",
                "rows of a DataFrame have no order of their own",
                hint="name the column that orders them: sequence_by='lsn'",
            )
        return replace(self._plain(table, self.given(table, data, how), how, keys), ordered=not is_frame(data))

    def given(self, table: Table, data: Any, how: Told) -> tuple[pa.Table, Schema]:
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
        self,
        table: Table,
        given: tuple[pa.Table, Schema],
        how: Told,
        keys: Sequence[Field],
        left: Sequence[str] = (),
    ) -> Captured:
        """Changes as rows; columns that are ``left`` out are not asked for."""
        rows, fields = given
        names = {f.name.lower(): f.name for f in fields}
        special = [n for n in (how.op_column, *how.sequence_by) if n is not None]
        for name in (*special, *how.columns):
            if name.lower() not in names:
                raise _no_column("the changes have", name, [f.name for f in fields])
        ops = self._ops(table, rows, fields, how)
        sequences = tuple(rows.column(names[name.lower()]) for name in how.sequence_by)
        lacked = _lacked(table, rows, how)
        return Captured(_in_table(table, rows, how, keys, [*special, *left]), ops, sequences, lacked=lacked)

    def _ops(self, table: Table, rows: pa.Table, fields: Schema, how: Told) -> Ints:
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

    def _where(self, table: Table, rows: pa.Table, fields: Schema, condition: str) -> Flags:
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

    def _debezium(self, table: Table, data: Any, how: Told, keys: Sequence[Field]) -> Captured:
        given = _messages(data, keys, how.order) if is_frame(data) else self._as_arrow(*widened(data, ()))
        own, zone = _own_columns(table, how), self._runtime.settings.time_zone
        found = debezium.unwrap(given, own, [f.name for f in keys], how.order, zone)
        rows = self._as_arrow(*widened(found.rows, table.columns, how.except_columns))
        ops = _coded("op", found.ops, np.zeros(len(found.ops), np.bool_))
        lacked = _lacked(table, rows, how)
        return Captured(_in_table(table, rows, how, keys, ()), ops, tuple(found.sequences), not is_frame(data), lacked)


# What the arguments mean for a table


def check_table(table: Table, how: Told) -> None:
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
    if how.scd == 2 and bound(table, START).type != bound(table, END).type:
        raise CatalogError(
            "APPLY_CHANGES_NOT_A_HISTORY",
            f"{START} is {bound(table, START).type.sql}, {END} is {bound(table, END).type.sql}",
            hint="both have the type of what orders the changes",
        )


def bound(table: Table, name: str) -> Field:
    return next(f for f in table.columns if f.name.upper() == name)


def _own_columns(table: Table, how: Told) -> Schema:
    """The columns that changes may fill."""
    bounds = (START, END) if how.scd == 2 else ()
    return tuple(f for f in table.columns if f.name.upper() not in bounds and how.takes(f.name))


def keys_of(table: Table, how: Told) -> tuple[Field, ...]:
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


def _in_table(table: Table, rows: pa.Table, how: Told, keys: Sequence[Field], special: Sequence[str]) -> pa.Table:
    """The rows in the table's columns, what they come without as INSERT has it; an error for columns it does not have.

    Where NULL leaves a column as it is, what is lacking is NULL: there may be a row whose value stays.
    """
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
    lacked = {f.name for f in _lacked(table, rows, how)}
    columns = [
        rows.column(f.name)
        if f.name not in lacked
        else pa.nulls(rows.num_rows, f.type.arrow)
        if how.ignore_null_updates
        else lacking_rows(f, rows.num_rows)
        for f in table.columns
    ]
    return pa.table(columns, schema=arrow_schema(table.columns))


def _lacked(table: Table, rows: pa.Table, how: Told) -> Schema:
    """The table's columns that changes come without."""
    said = {f.name for f in _own_columns(table, how)} & set(rows.column_names)
    return tuple(f for f in table.columns if f.name not in said)


def _coded(name: str, column: pa.ChunkedArray, decided: Flags) -> Ints:
    """What the values of an operation column say."""
    if not (pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)):
        raise DataError(
            "APPLY_CHANGES_UNKNOWN_OP",
            f"{name} is {column.type}, and not text",
            hint="say what it means: delete_when='op = 2', and leave out op_column",
        )
    each = one_chunk(column).dictionary_encode()
    told = np.array([*(_OPS.get((value or "").lower(), _UNKNOWN) for value in each.dictionary.to_pylist()), _UNKNOWN])
    found: Ints = told[each.indices.fill_null(len(each.dictionary)).to_numpy()]
    unknown = (found == _UNKNOWN) & ~decided
    if unknown.any():
        at = int(unknown.argmax())
        raise DataError(
            "APPLY_CHANGES_UNKNOWN_OP",
            f"row {at + 1}: {name} is {column[at].as_py()!r}",
            hint=f"it is one of {', '.join(_OPS)}; for others leave out op_column and say what deletes: "
            f"delete_when=\"{name} = 'X'\"",
        )
    return found


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
