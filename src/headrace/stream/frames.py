"""Spark DataFrames in a relation's columns and types.

Columns go by name, and so do the fields of structs, in whatever order the frame has
them. A CAST would take struct fields by position, so a struct whose fields differ is
put together anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.lacking import lacking
from headrace.base.utf8 import holds_text
from headrace.catalog import Stream, Table
from headrace.engine.spark_sql import literal
from headrace.errors import DataError
from headrace.input import lengths
from headrace.input.nested import is_strict
from headrace.input.rows import match_columns
from headrace.plan.exprs import Literal
from headrace.sql.coercion import can_store
from headrace.types import STRING, VOID, Field, Limit, Schema, Type, of_spark, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NULL_MARK = "NULL_IN_NOT_NULL:"
"""How Spark's error about a NULL in a NOT NULL column starts."""
LENGTH_MARK = f"{lengths.CONDITION}:"
"""How its error about text starts that its column has no room for."""


def conform_frame(frame: DataFrame, target: Stream | Table) -> DataFrame:
    """The DataFrame with the target's columns in order; every column that does not fit is named.

    A NULL in a NOT NULL column fails where the row is read: the frame is run only once.
    """
    from pyspark.sql.functions import expr

    fields = frame.schema.fields
    selected = []
    misfits = []
    for column, at in zip(target.columns, match_columns(frame.columns, target.columns), strict=True):
        if at < 0:
            selected.append(expr(_missing(column, frame.isStreaming)).alias(column.name))
            continue
        given = fields[at]
        found = of_spark(given.dataType)
        if not _fits(found, column.type):
            misfits.append(f"column {column.name} is {column.type.sql}, but the DataFrame has {found.sql}")
            continue
        item = reshaped(quote(given.name), found, column.type)
        lacking = _lacking(quote(given.name), column.type) if is_strict(column.type) else ""
        if given.nullable and not column.nullable:
            lacking = " OR ".join(part for part in (f"{quote(given.name)} IS NULL", lacking) if part)
        if lacking:
            message = literal(Literal(STRING, f"{NULL_MARK} column {column.name}: NULL in a NOT NULL column"))
            failure = f"CAST(raise_error({message}) AS {column.type.sql})"
            item = f"CASE WHEN {lacking} THEN {failure} ELSE {item} END"
        selected.append(expr(item).alias(column.name))
    if misfits:
        raise DataError("INSERT_TYPE_MISMATCH", "; ".join(misfits), hint="cast it first")
    return frame.select(*selected)


def _missing(column: Field, streaming: bool) -> str:
    """Spark SQL for a column that a frame comes without; each batch of a stream has a time of its own."""
    if streaming and column.default is not None and column.default.zone:
        return {"date": "current_date()", "timestamp_ntz": "localtimestamp()"}.get(
            column.type.name, "current_timestamp()"
        )
    return literal(Literal(column.type, lacking(column)))


def in_columns(frame: DataFrame, held: Schema, stream: Stream) -> DataFrame:
    """The frame of files that were found to fit, in the stream's columns; those it lacks have their defaults."""
    from pyspark.sql.functions import expr

    names = {f.name for f in held}
    types = {f.name.lower(): of_spark(f.dataType) for f in frame.schema.fields}
    items = (
        (
            reshaped(quote(f.name), types[f.name.lower()], f.type)
            if f.name in names
            else literal(Literal(f.type, lacking(f))),
            f,
        )
        for f in stream.columns
    )
    return frame.select(*(expr(item).alias(f.name) for item, f in items))


def checked_text(frame: DataFrame) -> DataFrame:
    """The frame, which fails where it has text that is no UTF-8."""
    from pyspark.sql.functions import expr

    found = [(field.name, of_spark(field.dataType)) for field in frame.schema.fields]
    items = [(name, _valid(quote(name), type)) for name, type in found]
    return frame.select(*(expr(item).alias(name) for name, item in items))


def _valid(text: str, type: Type, depth: int = 0) -> str:
    """Spark SQL for a value whose text was looked at.

    >>> from headrace.types import parse_type
    >>> _valid("x", parse_type("array<struct<a:string,b:int>>"))
    "transform(x, e0 -> CASE WHEN e0 IS NOT NULL THEN named_struct('a', validate_utf8(e0.`a`), 'b', e0.`b`) END)"
    """
    if type == STRING:
        return f"validate_utf8({text})"
    if not holds_text(type.arrow):
        return text
    if type.name == "map":
        entry = f"e{depth}"
        key, value = (_valid(f"{entry}.{p.name}", p.type, depth + 1) for p in type.parts)
        entries = f"transform(map_entries({text}), {entry} -> named_struct('key', {key}, 'value', {value}))"
        return f"map_from_entries({entries})"
    if type.name == "array":
        return f"transform({text}, e{depth} -> {_valid(f'e{depth}', type.element, depth + 1)})"
    fields = ((p.name, _valid(f"{text}.{quote(p.name)}", p.type, depth)) for p in type.parts)
    items = ", ".join(f"{literal(Literal(STRING, name))}, {item}" for name, item in fields)
    return f"CASE WHEN {text} IS NOT NULL THEN named_struct({items}) END"


def reshaped(text: str, found: Type, wanted: Type, depth: int = 0) -> str:
    """Spark SQL for a value of type ``found`` in a type it fits, struct fields by name.

    >>> from headrace.types import parse_type
    >>> reshaped("x", parse_type("array<struct<b:int,a:int>>"), parse_type("array<struct<a:int,b:bigint>>"))
    "transform(x, e0 -> CASE WHEN e0 IS NOT NULL THEN named_struct('a', e0.`a`, 'b', CAST(e0.`b` AS bigint)) END)"
    """
    if found == wanted and not wanted.is_limited:
        return text
    if wanted.is_nested and found != VOID:
        if wanted.name == "array":
            inner = reshaped(f"e{depth}", found.element, wanted.element, depth + 1)
            return f"transform({text}, e{depth} -> {inner})"
        if wanted.name == "map":
            entry = f"e{depth}"
            key, value = (
                reshaped(f"{entry}.{p.name}", f.type, p.type, depth + 1)
                for f, p in zip(found.parts, wanted.parts, strict=True)
            )
            entries = f"transform(map_entries({text}), {entry} -> named_struct('key', {key}, 'value', {value}))"
            return f"map_from_entries({entries})"
        items = []
        for part in wanted.parts:
            given = found.part(part.name)
            assert given is not None
            field = reshaped(f"{text}.{quote(given.name)}", given.type, part.type, depth)
            items.append(f"{literal(Literal(STRING, part.name))}, {field}")
        return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(items)}) END"
    plain = text if found == wanted else f"CAST({text} AS {wanted.sql})"
    return plain if wanted.limit is None else _in_length(plain, wanted.limit)


def _in_length(text: str, limit: Limit) -> str:
    """Spark SQL for text that may have so many characters; spaces at its end that are too much do not count."""
    most = limit.length
    message = literal(Literal(STRING, f"{LENGTH_MARK} text is too long for {limit.sql}"))
    cut = (
        f"CASE WHEN {text} IS NULL OR char_length({text}) <= {most} THEN {text}"
        f" WHEN char_length(rtrim({text})) <= {most} THEN substring({text}, 1, {most})"
        f" ELSE CAST(raise_error({message}) AS string) END"
    )
    return f"rpad({cut}, {most}, ' ')" if limit.fixed else cut


def _fits(found: Type, wanted: Type) -> bool:
    """Whether a frame's values may go into a column: as INSERT's do, but struct fields by name."""
    if found in (wanted, VOID):
        return True
    if wanted.name == "array" and found.name == "array":
        return _fits(found.element, wanted.element)
    if wanted.name == "map" and found.name == "map":
        return all(_fits(f.type, p.type) for f, p in zip(found.parts, wanted.parts, strict=True))
    if wanted.name == "struct" and found.name == "struct":
        fields = [(found.part(p.name), p) for p in wanted.parts]
        return len(found.parts) == len(fields) and all(
            given is not None and _fits(given.type, part.type) for given, part in fields
        )
    return bool(can_store(found, wanted))


def _lacking(text: str, type: Type, depth: int = 0) -> str:
    """Spark SQL that holds where a field declared NOT NULL is NULL inside a value."""
    if type.name in ("array", "map"):
        inner = _lacking(f"e{depth}", type.parts[-1].type, depth + 1)
        items = text if type.name == "array" else f"map_values({text})"
        return f"coalesce(exists({items}, e{depth} -> {inner}), false)" if inner else ""
    parts = []
    for part in type.parts:
        field = f"{text}.{quote(part.name)}"
        parts += [] if part.nullable else [f"{field} IS NULL"]
        parts += [below] if (below := _lacking(field, part.type, depth)) else []
    return f"({text} IS NOT NULL AND ({' OR '.join(parts)}))" if parts else ""
