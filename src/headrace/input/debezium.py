"""Debezium's envelope taken apart: which change each message says, the row it makes, and its place in the source.

A message has ``before``, ``after``, ``op`` and ``source``, as columns of structs, or as the JSON text that Kafka's
``value`` is; ``payload`` may be around it. What a *tombstone* (a message without a value) and ``m`` say is for others.

JSON says less than a column's type: what could be meant in two ways is refused by name. A date is a number of days or
ISO text, a timestamp ISO text, or a number if the message's own ``schema`` says of what.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.native import native_connection, native_query
from headrace.base.utf8 import HINT, INVALID
from headrace.errors import DataError
from headrace.input import spellings
from headrace.input.json_kernel import JsonKernel
from headrace.input.json_scan import MISSING, NESTED, NUMBER, STRING, Located, NotJson, Scanner
from headrace.input.json_values import EXPECTED, convert
from headrace.input.spellings import first_failure
from headrace.input.text import KERNEL_BYTES, shorten
from headrace.types import Field, Schema

ENVELOPE = ("before", "after", "op", "source", "ts_ms", "ts_us", "ts_ns", "payload", "value")
"""The columns that are looked at."""
_AT_ONCE = 131_072
_UNITS = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
}
_UNAVAILABLE = "__debezium_unavailable_value"
_PARTS = ("payload", "schema", "before", "after", "op", "source", "ts_ms", "ts_us", "ts_ns")


@dataclass(frozen=True)
class Unwrapped:
    """Messages that change rows, in their order."""

    rows: pa.Table
    """What each says of its row; nothing of a truncate."""
    ops: pa.ChunkedArray
    """c, u, r, d or t, as a dictionary."""
    sequences: list[pa.ChunkedArray] = field(default_factory=list)
    numbers: Any = None
    """Where among the messages each was, from 0."""


def is_text(schema: pa.Schema) -> bool:
    """Whether the messages are JSON text."""
    return "value" in schema.names and not pa.types.is_struct(schema.field("value").type) and "op" not in schema.names


def unwrap(given: pa.Table, columns: Schema, keys: Sequence[str], sequence: Sequence[str], zone: str) -> Unwrapped:
    """Take messages apart. ``columns`` are the table's: JSON is read in their types. Of deletes only ``keys`` are sure
    to be said."""
    if is_text(given.schema):
        found = _of_text(given, columns, sequence, zone)
    else:
        found = _of_structs(given, columns, keys, sequence)
    for name, column in zip(found.rows.column_names, found.rows.columns, strict=True):
        if pa.types.is_string(column.type) and pc.any(pc.equal(column, _UNAVAILABLE)).as_py():
            raise DataError(
                "DEBEZIUM_VALUE_UNAVAILABLE",
                f"column {name} has a value that Debezium was not told of, as it had not changed",
                hint="have the source log whole rows: ALTER TABLE … REPLICA IDENTITY FULL",
            )
    return found


def _one_of(ops: pa.DictionaryArray, *values: str) -> Any:
    """Which of many texts, of which few differ, are one of these."""
    told = np.array([*(value in values for value in ops.dictionary.to_pylist()), False])
    return told[ops.indices.fill_null(len(ops.dictionary)).to_numpy()]


def _check(ops: pa.DictionaryArray, has_image: Any, numbers: Any) -> None:
    """An error for what no message says, or one that lacks its row."""
    known = _one_of(ops, "c", "u", "r", "d", "t")
    if not known.all():
        at = int((~known).argmax())
        raise DataError(
            "APPLY_CHANGES_UNKNOWN_OP",
            f"row {numbers[at] + 1}: op is {ops[at].as_py()!r}, which is none of Debezium's",
            hint="it is c, r, u, d or t (m is passed over)",
        )
    bare = ~has_image & ~_one_of(ops, "t")
    if bare.any():
        at = int(bare.argmax())
        which = "before" if ops[at].as_py() == "d" else "after"
        raise DataError(
            "DEBEZIUM_NO_ROW",
            f"row {numbers[at] + 1}: op is {ops[at].as_py()}, but {which} is NULL",
            hint="have the source log at least the keys of deleted rows (REPLICA IDENTITY)",
        )


# Structs


def _of_structs(given: pa.Table, columns: Schema, keys: Sequence[str], sequence: Sequence[str]) -> Unwrapped:
    for name in ("value", "payload"):
        if name in given.column_names and pa.types.is_struct(given.schema.field(name).type):
            inner = given.column(name)
            parts = {f.name: pc.struct_field(inner, [f.name]) for f in inner.type}
            rest = {n: given.column(n) for n in given.column_names if n not in parts}
            given = pa.table({**parts, **rest})
    missing = [name for name in ("op", "after") if name not in given.column_names]
    if missing:
        raise DataError(
            "DEBEZIUM_NO_ENVELOPE",
            f"the rows have no column {' and no '.join(missing)}",
            hint="Debezium's messages have before, after, op and source, as structs; or value, as JSON text",
        )
    op = given.column("op").cast(pa.string()).combine_chunks().dictionary_encode()
    nothing = pc.and_(op.is_null(), given.column("after").is_null())
    numbers = np.flatnonzero(~(_one_of(op, "m") | nothing.to_numpy(zero_copy_only=False)))
    if len(numbers) < len(op):
        given, op = given.take(pa.array(numbers)), op.take(pa.array(numbers))
    after = given.column("after")
    before = given.column("before") if "before" in given.column_names else pa.chunked_array([pa.nulls(len(op))])
    is_delete = pa.array(_one_of(op, "d"))
    has_image = pc.if_else(is_delete, before.is_valid(), after.is_valid()).to_numpy(zero_copy_only=False)
    _check(op, has_image, numbers)
    rows = _images(before, after, is_delete, {name.lower() for name in (*keys, *sequence)})
    for i, name in enumerate(rows.column_names):
        rows = rows.set_column(i, name, _plain(rows.column(i), next((f for f in columns if _is(f, name)), None)))
    return Unwrapped(rows, pa.chunked_array([op]), [_path(given, rows, name) for name in sequence], numbers)


def _is(f: Field, name: str) -> bool:
    return f.name.lower() == name.lower()


def _images(before: pa.ChunkedArray, after: pa.ChunkedArray, is_delete: pa.BooleanArray, wanted: set[str]) -> pa.Table:
    """What messages say of the row after them, and deletes of what is ``wanted`` of the row before."""

    def fields(image: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
        parts = image.type if pa.types.is_struct(image.type) else ()
        return {f.name: pc.struct_field(image, [f.name]) for f in parts}

    found, old = fields(after), fields(before)
    for name in old if pc.any(is_delete).as_py() else ():
        if name not in found:
            found[name] = old[name]
        elif name.lower() in wanted:
            one, other = old[name], found[name]
            if pa.types.is_null(other.type):
                other = other.cast(one.type)
            found[name] = pc.if_else(is_delete, one.cast(other.type), other)
    return pa.table(found)


def _plain(column: pa.ChunkedArray, wanted: Field | None) -> pa.ChunkedArray:
    """A column as its type would have it: Debezium counts the days of a date."""
    if wanted is None or not pa.types.is_integer(column.type):
        return column
    if wanted.type.name == "date":
        return column.cast(pa.int32()).cast(pa.date32())
    if wanted.type.is_timestamp:
        raise _ambiguous(wanted.name, wanted.type.sql)
    return column


def _ambiguous(name: str, type: str) -> DataError:
    return DataError(
        "DEBEZIUM_AMBIGUOUS",
        f"column {name} is {type}, and comes as a number: of milliseconds, or of microseconds?",
        hint="have Debezium write ISO text (time.precision.mode=isostring), send the messages' schema along as JSON "
        "(value.converter.schemas.enable=true), or make the column a BIGINT",
    )


def _path(given: pa.Table, rows: pa.Table, name: str) -> pa.ChunkedArray:
    """A column that changes are ordered by: of the envelope (``source.lsn``), beside it, or of the rows."""
    first, *deeper = name.split(".")
    found = None
    if first in given.column_names:
        found = given.column(first)
        for part in deeper:
            names = [f.name for f in found.type] if pa.types.is_struct(found.type) else []
            found = pc.struct_field(found, [part]) if part in names else None
            if found is None:
                break
    elif not deeper:
        found = next((rows.column(i) for i, n in enumerate(rows.column_names) if n.lower() == name.lower()), None)
    if found is None or pa.types.is_null(found.type):
        raise _no_sequence(name)
    return found


def _no_sequence(name: str) -> DataError:
    return DataError(
        "UNRESOLVED_COLUMN",
        f"the messages have no {name}",
        hint="name what orders them: sequence_by='source.lsn' (PostgreSQL), ['source.file', 'source.pos'] (MySQL), "
        "'ts_ms', a column of the rows, or one beside value, such as Kafka's offset",
    )


# JSON text


def _of_text(given: pa.Table, columns: Schema, sequence: Sequence[str], zone: str) -> Unwrapped:
    try:
        value = given.column("value").cast(pa.string())
    except pa.ArrowException as error:
        raise DataError(INVALID, f"column value: {error}", hint=HINT) from None
    numbers = np.flatnonzero(value.is_valid().to_numpy(zero_copy_only=False))
    parts = []
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        parts.append(_Texts(value.take(pa.array(some)).combine_chunks(), some, columns, zone).read(given, sequence))
    if not parts:
        names = {f.name: pa.array([], f.type.arrow) for f in columns}
        empty = [pa.chunked_array([pa.array([], pa.int64())])] * len(sequence)
        return Unwrapped(pa.table(names), pa.chunked_array([pa.array([], pa.string())]), empty, numbers)
    return Unwrapped(
        pa.concat_tables([p.rows for p in parts], promote_options="permissive"),
        pa.chunked_array([c for p in parts for c in p.ops.chunks]),
        [_together([p.sequences[i] for p in parts]) for i in range(len(sequence))],
        np.concatenate([p.numbers for p in parts]),
    )


def _together(parts: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    if len({part.type for part in parts}) > 1:
        raise _of_no_order("what orders the messages is a number in some, and text in others")
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)


@dataclass
class _Texts:
    """Some messages of JSON."""

    texts: pa.Array
    numbers: Any
    columns: Schema
    zone: str

    def read(self, given: pa.Table, sequence: Sequence[str]) -> Unwrapped:
        parts = self._located(self.texts, _PARTS)
        wrapped = parts["payload"].kinds == NESTED
        schema = parts["schema"]
        if wrapped.any():
            self.texts = pc.if_else(pa.array(wrapped), parts["payload"].text, self.texts)
            parts = self._located(self.texts, _PARTS)
        ops, after, before = parts["op"].text.dictionary_encode(), parts["after"], parts["before"]
        empty = (parts["op"].kinds == MISSING) & (after.kinds == MISSING) & (before.kinds == MISSING)
        passed = empty | _one_of(ops, "m")
        chosen = pa.array(np.flatnonzero(~passed))
        self.numbers = self.numbers[~passed]
        ops = ops.take(chosen)
        is_delete = _one_of(ops, "d")
        images = pc.if_else(pa.array(is_delete), before.text.take(chosen), after.text.take(chosen))
        kinds = np.where(is_delete, before.kinds[~passed], after.kinds[~passed])
        _check(ops, kinds == NESTED, self.numbers)
        images = pc.fill_null(images, "{}")
        located = self._located(images, [f.name for f in self.columns])
        units = _Units(Located(schema.kinds[~passed], schema.text.take(chosen)))
        said = self._said(images)
        # A column that is in no image has its default, one that is in some is NULL in the others.
        held = [f for f in self.columns if f.default is None or not said or any(_is(f, name) for name in said)]
        rows = pa.table({f.name: self._column(f, located[f.name], units) for f in held} | self._others(images, said))
        orders = []
        for name in sequence:
            orders.append(self._order(name, {n: _taken(p, ~passed) for n, p in parts.items()}, given, rows))
        return Unwrapped(rows, pa.chunked_array([ops]), orders, self.numbers)

    def _located(self, texts: pa.Array, names: Sequence[str]) -> dict[str, Located]:
        """Where each message has these values."""
        if pc.any(pc.match_substring(texts, "\n")).as_py():
            texts = pc.replace_substring(texts, "\n", " ")  # between values: inside text it is spelled \\n
        lines = pc.binary_join_element_wise(texts, "", "\n")
        bounds = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
        data = np.frombuffer(lines.buffers()[2] or b"", np.uint8)[: bounds[-1]]
        start = int(bounds[0])
        found: tuple[int, list[Located]] | None = None
        ascii_only = all(map(str.isascii, names))
        if ascii_only and len(data) - start >= KERNEL_BYTES:
            found = JsonKernel(names).locate(data, start, len(data))
        if found is None:
            try:
                found = Scanner(names, ascii_only=ascii_only).locate(data[start:].tobytes())
            except NotJson as refusal:
                raise self._no_json(refusal.rows, refusal.what, refusal.condition) from None
        if found[0] != len(texts):
            blank = pc.equal(pc.utf8_trim_whitespace(texts), "").to_numpy(zero_copy_only=False)
            raise self._no_json(int(blank.argmax()), "there is no message", "JSON_INVALID")
        return dict(zip(names, found[1], strict=True))

    def _no_json(self, row: int, what: str, condition: str) -> DataError:
        hint = "value is one message of Debezium's JSON converter, or NULL"
        return DataError(condition, f"row {self.numbers[row] + 1}, column value: {what}", hint=hint)

    def _column(self, f: Field, column: Located, units: _Units) -> pa.Array:
        plain = Field(f.name, f.type.plain)
        try:
            return _values(column, plain, self.zone, units)
        except (pa.ArrowException, ValueError, OverflowError):
            bad = first_failure(lambda part: _values(part, plain, self.zone, units), column)
        if bad is None:
            raise AssertionError(f"{f.name} fails as a whole only")
        if f.type.is_timestamp and column.kinds[bad] == NUMBER:
            raise _ambiguous(f.name, f.type.sql)
        hint = EXPECTED[f.type.name]
        if f.type.is_decimal:
            hint = "have Debezium write decimals as text: decimal.handling.mode=string"
        shown = shorten(column.shown(bad))
        raise DataError(
            "DEBEZIUM_BAD_VALUE", f"row {self.numbers[bad] + 1}, column {f.name}: {shown} is no {f.type.sql}", hint=hint
        )

    def _said(self, images: pa.Array) -> list[str]:
        """The fields that there are in some image."""
        text = "SELECT DISTINCT unnest(json_keys(image)) AS name FROM images ORDER BY name"
        with native_connection() as connection:
            found = native_query(connection, text, {"images": pa.table({"image": images})})
        names: list[str] = found.column("name").to_pylist()
        return names

    def _others(self, images: pa.Array, said: Sequence[str]) -> dict[str, pa.Array]:
        """Fields that are no columns of the table, as text."""
        known = {f.name.lower() for f in self.columns}
        others = [name for name in said if name.lower() not in known]
        return {n: c.text for n, c in self._located(images, others).items()} if others else {}

    def _order(self, name: str, parts: dict[str, Located], given: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
        first, *deeper = name.split(".")
        if first == "value" or (first not in ENVELOPE and first in given.column_names):
            return given.column(first).take(pa.array(self.numbers))
        if first not in parts:
            found = next((rows.column(i) for i, n in enumerate(rows.column_names) if n.lower() == name.lower()), None)
            if found is None:
                raise _no_sequence(name)
            return found
        column = parts[first]
        for part in deeper:
            texts = pc.if_else(pa.array(column.kinds == NESTED), column.text, "{}")
            column = self._located(texts, [part])[part]
        if len(column) and (column.kinds == MISSING).all():
            raise _no_sequence(name)
        # A number, or text: a sequence has one type.
        if (np.isin(column.kinds, (NUMBER, MISSING))).all():
            return pa.chunked_array([self._whole(name, column.text)])
        return pa.chunked_array([column.text])

    def _whole(self, name: str, text: pa.Array) -> pa.Array:
        bad = first_failure(lambda part: pc.cast(part, pa.int64()), text)
        if bad is not None:
            raise _of_no_order(f"row {self.numbers[bad] + 1}: {name} is {text[bad].as_py()}, and no whole number")
        return pc.cast(text, pa.int64())


def _of_no_order(what: str) -> DataError:
    return DataError(
        "APPLY_CHANGES_SEQUENCE_TYPE", what, hint="name something that is text, or a whole number, in all messages"
    )


def _taken(column: Located, chosen: Any) -> Located:
    return Located(column.kinds[chosen], column.text.filter(pa.array(chosen)))


def _values(column: Located, f: Field, zone: str, units: _Units) -> pa.Array:
    """The values of a column; an error from Arrow or a ValueError if one cannot be kept."""
    name = f.type.name
    numbers = pc.if_else(pa.array(column.kinds == NUMBER), column.text, pa.scalar(None, pa.string()))
    if name == "date" or f.type.is_timestamp:
        texts = pc.if_else(pa.array(column.kinds == STRING), column.text, pa.scalar(None, pa.string()))
        if not np.isin(column.kinds, (MISSING, NUMBER, STRING)).all():
            raise ValueError("a value of another kind")
        read = spellings.read(texts, f.type, zone)
        if numbers.null_count == len(numbers):
            return read
        whole = pc.cast(numbers, pa.int64())
        if name == "date":
            return pc.coalesce(read, whole.cast(pa.int32()).cast(pa.date32()))
        unit = units.of(f.name)
        if unit is None:
            raise ValueError("a number of something")
        return pc.coalesce(read, whole.cast(pa.timestamp(unit)).cast(f.type.arrow))
    return convert(column, f.type, zone)


class _Units:
    """What numbers count that stand for times, as the messages' schemas say it."""

    def __init__(self, schemas: Located) -> None:
        self._schemas = schemas

    def of(self, column: str) -> str | None:
        """The unit of a column, if all messages agree on it."""
        if not (self._schemas.kinds == NESTED).all():
            return None
        found = {
            _UNITS.get(name) for text in pc.unique(self._schemas.text).to_pylist() for name in _types(text, column)
        }
        return found.pop() if len(found) == 1 else None


def _types(text: str, column: str) -> Iterator[str]:
    """What Debezium calls the type of a column in the images of a schema."""
    for image in json.loads(text).get("fields") or ():
        if image.get("field") in ("before", "after"):
            for part in image.get("fields") or ():
                if part.get("field", "").lower() == column.lower():
                    yield part.get("name", "")
