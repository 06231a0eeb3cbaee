"""Spark DataFrames in a relation's columns and types.

Columns go by name, and so do the fields of structs, in whatever order the frame has
them. A CAST would take struct fields by position, so a struct whose fields differ is
put together anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.catalog import Stream, Table
from headrace.engine.spark_sql import literal
from headrace.errors import DataError
from headrace.plan.exprs import Literal
from headrace.sql.coercion import can_store
from headrace.stream.nested import is_strict
from headrace.stream.rows import match_columns
from headrace.types import STRING, VOID, Schema, Type, of_spark, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NULL_MARK = "NULL_IN_NOT_NULL:"
"""How Spark's error about a NULL in a NOT NULL column starts."""


def conform_frame(frame: DataFrame, target: Stream | Table) -> DataFrame:
    """The DataFrame with the target's columns in order; every column that does not fit is named.

    A NULL in a NOT NULL column fails where the row is read: the frame is run only once.
    """
    from pyspark.sql.functions import expr

    fields = frame.schema.fields
    selected = []
    misfits = []
    for column, at in zip(target.columns, match_columns(frame.columns, target.columns), strict=True):
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


def in_columns(frame: DataFrame, held: Schema, stream: Stream) -> DataFrame:
    """The frame of files that were found to fit, in the stream's columns; those it does not hold are NULL."""
    from pyspark.sql.functions import expr

    names = {f.name for f in held}
    types = {f.name.lower(): of_spark(f.dataType) for f in frame.schema.fields}
    items = (
        (
            reshaped(quote(f.name), types[f.name.lower()], f.type)
            if f.name in names
            else f"CAST(NULL AS {f.type.sql})",
            f,
        )
        for f in stream.columns
    )
    return frame.select(*(expr(item).alias(f.name) for item, f in items))


def reshaped(text: str, found: Type, wanted: Type, depth: int = 0) -> str:
    """Spark SQL for a value of type ``found`` in a type it fits, struct fields by name.

    >>> from headrace.types import parse_type
    >>> reshaped("x", parse_type("array<struct<b:int,a:int>>"), parse_type("array<struct<a:int,b:bigint>>"))
    "transform(x, e0 -> CASE WHEN e0 IS NOT NULL THEN named_struct('a', e0.`a`, 'b', CAST(e0.`b` AS bigint)) END)"
    """
    if found == wanted:
        return text
    if wanted.is_nested and found != VOID:
        if wanted.name == "array":
            inner = reshaped(f"e{depth}", found.element, wanted.element, depth + 1)
            return f"transform({text}, e{depth} -> {inner})"
        items = []
        for part in wanted.parts:
            given = found.part(part.name)
            assert given is not None
            field = reshaped(f"{text}.{quote(given.name)}", given.type, part.type, depth)
            items.append(f"{literal(Literal(STRING, part.name))}, {field}")
        return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(items)}) END"
    return f"CAST({text} AS {wanted.sql})"


def _fits(found: Type, wanted: Type) -> bool:
    """Whether a frame's values may go into a column: as INSERT's do, but struct fields by name."""
    if found in (wanted, VOID):
        return True
    if wanted.name == "array" and found.name == "array":
        return _fits(found.element, wanted.element)
    if wanted.name == "struct" and found.name == "struct":
        fields = [(found.part(p.name), p) for p in wanted.parts]
        return len(found.parts) == len(fields) and all(
            given is not None and _fits(given.type, part.type) for given, part in fields
        )
    return bool(can_store(found, wanted))


def _lacking(text: str, type: Type, depth: int = 0) -> str:
    """Spark SQL that holds where a field declared NOT NULL is NULL inside a value."""
    if type.name == "array":
        inner = _lacking(f"e{depth}", type.element, depth + 1)
        return f"coalesce(exists({text}, e{depth} -> {inner}), false)" if inner else ""
    parts = []
    for part in type.parts:
        field = f"{text}.{quote(part.name)}"
        parts += [] if part.nullable else [f"{field} IS NULL"]
        parts += [below] if (below := _lacking(field, part.type, depth)) else []
    return f"({text} IS NOT NULL AND ({' OR '.join(parts)}))" if parts else ""
