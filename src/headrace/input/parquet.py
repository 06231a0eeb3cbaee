"""Parquet in slices: row ranges, read by DuckDB inside the fragment's own query.

A Parquet file knows its types, so COPY checks them before anything is read: a
column converts if every value it may hold keeps its value, or if the one value
that does not is sure to raise an error (a bigint column into an ``int``). Rounding,
truncating and guessing a time zone are refused. Then a piece is just a table
expression: DuckDB skips the row groups outside its range by itself, and no row
passes through Python.

>>> conversion(pa.int64(), False, INT), conversion(pa.float64(), False, INT)
(Conversion(sql='CAST({} AS INTEGER)', checked=True), None)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from headrace.base.interrupts import check
from headrace.base.native import native_connection
from headrace.base.parquet_files import ROW_NUMBER, native_scan, open_parquet
from headrace.base.utf8 import HINT, INVALID, first_bad_text, holds_text
from headrace.errors import DataError
from headrace.input.lengths import too_long
from headrace.input.nested import is_strict
from headrace.types import INT, Field, Limit, Schema, Type, is_list

__all__ = ["INT", "Conversion", "ParquetFile", "ParquetPiece", "ParquetSlice"]

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


@dataclass(frozen=True)
class Conversion:
    """How a column becomes its declared type; ``checked`` if a value may be refused on the way."""

    sql: str
    checked: bool = False


@dataclass(frozen=True)
class ParquetFile:
    """What a file's footer says: bytes and rows of its row groups, and each column's conversion."""

    path: Path
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    names: tuple[str, ...]
    conversions: tuple[Conversion, ...]

    @property
    def rows(self) -> int:
        return sum(self.group_rows)


@dataclass(frozen=True)
class ParquetPiece:
    """Rows ``[start, end)`` of a file. ``names`` and ``conversions`` go with the schema's columns."""

    path: Path
    start: int
    end: int
    names: tuple[str, ...]
    conversions: tuple[Conversion, ...]


@dataclass(frozen=True)
class ParquetSlice:
    """What one task reads: pieces of one or several files."""

    pieces: tuple[ParquetPiece, ...]

    @property
    def rows(self) -> int:
        return sum(p.end - p.start for p in self.pieces)


def conversion(found: pa.DataType, int96: bool, wanted: Type) -> Conversion | None:
    """How a file's column of Arrow type ``found`` becomes ``wanted``, ``None`` if it does not.

    ``int96`` marks the timestamps older Spark and Hive write: instants, whatever Arrow makes of them.
    """
    if wanted.limit is not None:
        how = conversion(found, int96, wanted.plain)
        return None if how is None else _in_length(how, wanted.limit)
    if wanted.is_nested:
        return None if int96 else _nested(found, wanted)
    t = pa.types
    cast = f"CAST({{}} AS {wanted.duckdb})"
    if t.is_dictionary(found):
        found = found.value_type
    if t.is_floating(found) and wanted.is_float:
        fits = wanted.name == "double" or not t.is_float64(found)
        return Conversion(past_statistics(cast, wanted)) if fits else None
    if t.is_null(found) or found == wanted.arrow:
        return Conversion(cast) if not (int96 and wanted.is_timestamp) else None
    if t.is_integer(found):
        bits = found.bit_width + t.is_unsigned_integer(found)  # a sign takes a bit of its own
        if wanted.is_integer:
            return Conversion(cast, checked=bits > wanted.arrow.bit_width)
        if wanted.is_decimal:
            digits = 20 if found == pa.uint64() else _DIGITS[found.bit_width]
            return Conversion(cast, checked=digits > wanted.precision - wanted.scale)
        exact = {"float": 25, "double": 54}.get(wanted.name, 0)  # sign and mantissa
        return Conversion(cast) if bits <= exact else None
    if t.is_decimal128(found) or t.is_decimal32(found) or t.is_decimal64(found):
        if not wanted.is_decimal or not 0 <= found.scale <= wanted.scale:
            return None
        return Conversion(cast, checked=found.precision - found.scale > wanted.precision - wanted.scale)
    if t.is_timestamp(found):
        return _timestamp(found, int96, wanted)
    text = t.is_large_string(found) or t.is_string_view(found)
    blob = t.is_large_binary(found) or t.is_binary_view(found) or t.is_fixed_size_binary(found)
    return Conversion(cast) if (text and wanted.name == "string") or (blob and wanted.name == "binary") else None


def _in_length(how: Conversion, limit: Limit) -> Conversion:
    """Text that may have so many characters; spaces at its end that are too much do not count."""
    text, most = how.sql, limit.length
    if not limit.checked:
        filled = f"CASE WHEN length({text}) < {most} THEN rpad({text}, {most}, ' ') ELSE {text} END"
        return Conversion(filled, how.checked) if limit.fixed else how
    cut = (
        f"CASE WHEN {text} IS NULL OR length({text}) <= {most} THEN {text}"
        f" WHEN length(rtrim({text}, ' ')) <= {most} THEN left({text}, {most}) ELSE error('too long') END"
    )
    return Conversion(f"rpad({cut}, {most}, ' ')" if limit.fixed else cut, checked=True)


def past_statistics(value: str, type: Type) -> str:
    """A float as the file has it, whatever the file's statistics say.

    Writers leave NaN out of a column's minimum and maximum. DuckDB trusts those: it would skip the rows
    that a comparison with NaN, the greatest of all, is true for.
    """
    return f"CASE WHEN isnan({value}) THEN 'nan'::{type.duckdb} ELSE {value} END"


def _nested(found: pa.DataType, wanted: Type, depth: int = 0) -> Conversion | None:
    """A list or struct put together of its converted elements or fields; fields that are not wanted are not read."""
    checked = wanted.is_limited or wanted.holds_maps or is_strict(wanted)
    if pa.types.is_null(found) or (found == wanted.arrow and not checked and not wanted.holds_floats):
        return Conversion(f"CAST({{}} AS {wanted.duckdb})")
    if wanted.name == "array":
        if not is_list(found):
            return None
        element, inner = f"e{depth}", _below(found.value_type, wanted.element, depth + 1)
        if inner is None:
            return None
        return Conversion(f"list_transform({{}}, lambda {element}: {inner.sql.replace('{}', element)})", inner.checked)
    if wanted.name == "map":
        return _map(found, wanted, depth)
    if not pa.types.is_struct(found):
        return None
    given: dict[str, list[pa.Field]] = {}
    for f in found:
        given.setdefault(f.name.lower(), []).append(f)
    items, checked = [], False
    for part in wanted.parts:
        fields = given.get(part.name.lower(), [])
        inner = _below(fields[0].type, part.type, depth) if len(fields) == 1 else None
        if inner is None:
            return None
        if not part.nullable and fields[0].nullable:
            inner = _refusing_null(inner)
        access = f"struct_extract({{}}, {_text(fields[0].name)})"
        items.append(f"{_name(part.name)} := {inner.sql.replace('{}', access)}")
        checked = checked or inner.checked
    return Conversion(f"CASE WHEN {{}} IS NULL THEN NULL ELSE struct_pack({', '.join(items)}) END", checked)


def _map(found: pa.DataType, wanted: Type, depth: int) -> Conversion | None:
    if not pa.types.is_map(found):
        return None
    key = _below(found.key_type, wanted.parts[0].type, depth + 1)
    value = _below(found.item_type, wanted.parts[1].type, depth + 1)
    if key is None or value is None:
        return None
    entry = f"e{depth}"
    items = f"k := {key.sql.replace('{}', f'{entry}.key')}, v := {value.sql.replace('{}', f'{entry}.value')}"
    entries = f"list_transform(map_entries({{}}), lambda {entry}: struct_pack({items}))"
    # an inner NULL would be an empty map
    return Conversion(f"CASE WHEN {{}} IS NULL THEN NULL ELSE map_from_entries({entries}) END", checked=True)


def _below(found: pa.DataType, wanted: Type, depth: int) -> Conversion | None:
    return _nested(found, wanted, depth) if wanted.is_nested else conversion(found, False, wanted)


def _refusing_null(how: Conversion) -> Conversion:
    return Conversion(f"CASE WHEN {{}} IS NULL THEN error('NULL') ELSE {how.sql} END", checked=True)


def _timestamp(found: pa.DataType, int96: bool, wanted: Type) -> Conversion | None:
    if int96:
        return Conversion("make_timestamptz(epoch_us({}))") if wanted.name == "timestamp" else None
    if wanted.name != ("timestamp_ntz" if found.tz is None else "timestamp"):
        return None
    if found.unit != "ns":
        return Conversion(f"CAST({{}} AS {wanted.duckdb})")
    # a cast would cut nanoseconds off; dividing exactly or not at all keeps the value
    whole = "CASE WHEN epoch_ns({}) % 1000 <> 0 THEN error('nanoseconds do not fit') "
    return Conversion(whole + f"ELSE CAST({{}} AS {wanted.duckdb}) END", checked=True)


def inspect(path: Path, schema: Schema) -> ParquetFile:
    """Reads a file's footer and finds every column's conversion; :class:`DataError` if one has none.

    Columns are matched by name in any case; columns the schema does not have are not read.
    """
    try:
        with open_parquet(path) as file:
            arrow, metadata = file.schema_arrow, file.metadata
            leaves = [file.schema.column(i) for i in range(metadata.num_columns)]
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    by_name: dict[str, list[pa.Field]] = {}
    for column in arrow:
        by_name.setdefault(column.name.lower(), []).append(column)
    if missing := [f.name for f in schema if f.name.lower() not in by_name]:
        raise DataError(
            "MISSING_COLUMN", f"{path} has no column {', '.join(missing)}", hint=f"it has {', '.join(arrow.names)}"
        )
    if repeated := [f.name for f in schema if len(by_name[f.name.lower()]) > 1]:
        raise DataError("REPEATED_COLUMN", f"{path} has {', '.join(repeated)} more than once")
    if ROW_NUMBER in by_name:
        raise DataError("PARQUET_RESERVED_COLUMN", f"{path} has a column {ROW_NUMBER}", hint="rename it in the file")
    found = [by_name[f.name.lower()][0] for f in schema]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return ParquetFile(
        path,
        tuple(g.num_rows for g in groups),
        tuple(max(g.total_byte_size, 1) for g in groups),
        tuple(column.name for column in found),
        tuple(_conversion_of(path, c, f, holds_int96(c.name, int96)) for c, f in zip(found, schema, strict=True)),
    )


def holds_int96(column: str, leaves: set[str]) -> bool:
    """Whether a column is, or has inside, one of these leaves of a file."""
    return any(leaf == column or leaf.startswith(f"{column}.") for leaf in leaves)


def _conversion_of(path: Path, column: pa.Field, f: Field, int96: bool) -> Conversion:
    how = conversion(column.type, int96, f.type)
    if how is None:
        spelled = "timestamp (INT96)" if int96 and not f.type.is_nested else str(column.type)
        raise DataError(
            "PARQUET_TYPE_MISMATCH",
            f"{path}, column {f.name}: {spelled} does not become {f.type.sql} without loss",
            hint="declare the column with the file's type, or convert the file",
        )
    if f.nullable or not column.nullable:
        return how
    return _refusing_null(how)


def check_parquet(path: Path, schema: Schema) -> None:
    """:class:`DataError` if the file cannot be read, lacks a column, or has one that does not convert."""
    inspect(path, schema)


def row_at(file: ParquetFile, at: int, share: float) -> int:
    """The row at byte ``at``: between row groups if they are small beside a slice, else inside one."""
    ends = list(accumulate(file.group_bytes))
    rows = [0, *accumulate(file.group_rows)]
    if at >= ends[-1]:
        return rows[-1]
    group = int(np.searchsorted(ends, at, side="right"))
    part = (at - (ends[group] - file.group_bytes[group])) / file.group_bytes[group]
    if file.group_bytes[group] * 4 <= share:
        return rows[group + round(part)]
    return rows[group] + int(part * file.group_rows[group])


def piece(file: ParquetFile, start: int, end: int) -> ParquetPiece:
    """Rows ``[start, end)`` of a file."""
    return ParquetPiece(file.path, start, end, file.names, file.conversions)


def parquet_source(piece: ParquetPiece, schema: Schema, columns: tuple[str, ...]) -> str:
    """A DuckDB table expression for the piece's rows: ``columns`` in their declared types.

    A value that does not fit raises a DuckDB error; :func:`first_bad_value` then tells which.
    """
    return f"(SELECT {select_items(piece, schema, columns)} FROM {_rows(piece)})"


def select_items(piece: ParquetPiece, schema: Schema, columns: tuple[str, ...]) -> str:
    """The select list that gives a file's ``columns`` their declared types."""
    by_name = {f.name: i for i, f in enumerate(schema)}
    wanted = [(piece.names[by_name[c]], piece.conversions[by_name[c]], c) for c in columns]
    items = ", ".join(f"{how.sql.replace('{}', _name(found))} AS {_name(name)}" for found, how, name in wanted)
    # a query must select something, also where only the number of rows is wanted
    return items or "NULL AS nothing"


def first_bad_value(piece: ParquetPiece, schema: Schema, columns: tuple[str, ...]) -> DataError | None:
    """What is wrong with a piece: it cannot be read, or its first value that does not fit; ``None`` if nothing is."""
    check()  # it may be that nothing is wrong: whoever read it was told to stop
    try:
        _read_through(piece, schema, columns)
        worst = _first_bad(piece, schema, columns)
    except duckdb.Error as error:
        return _bad_text(piece, schema, columns) or _unreadable(piece.path, error)
    if worst is None:
        return None
    number, f, value = worst
    if value is None:
        return DataError("NULL_IN_NOT_NULL", f"{piece.path}, row {number}: column {f.name} is NOT NULL, but has a NULL")
    if f.type.limit is not None and f.type.limit.checked:
        return too_long(f"{piece.path}, row {number}: ", f"column {f.name}: {value} is too long for {f.type.declared}")
    if f.type.holds_maps and _repeats_key(replace(piece, start=number - 1, end=number), schema, f):
        what = f"{piece.path}, row {number}: column {f.name}: a key is there twice in {value}"
        return DataError("DUPLICATED_MAP_KEY", what, hint="give each key once")
    return DataError(
        "PARQUET_BAD_VALUE",
        f"{piece.path}, row {number}: column {f.name}: {value} is no {f.type.declared}",
        hint="declare the column with the file's type",
    )


def _repeats_key(row: ParquetPiece, schema: Schema, f: Field) -> bool:
    """Whether that is why DuckDB cannot read the column in this row."""
    with native_connection() as connection:
        try:
            connection.execute(f"SELECT * FROM {parquet_source(row, schema, (f.name,))}").fetchone()
        except duckdb.Error as error:
            return "Map keys must be unique" in str(error)
    return False


def _read_through(piece: ParquetPiece, schema: Schema, columns: tuple[str, ...]) -> None:
    """Read every value once; DuckDB's error if that cannot be done."""
    names = [found for f, found in zip(schema, piece.names, strict=True) if f.name in columns]
    with native_connection() as connection:
        items = ", ".join(f"bit_xor(hash({_name(name)}))" for name in names) or "count(*)"
        connection.execute(f"SELECT {items} FROM {_rows(piece)}").fetchone()


def _bad_text(piece: ParquetPiece, schema: Schema, columns: tuple[str, ...]) -> DataError | None:
    """The first text of a file that is no UTF-8. Arrow reads it, DuckDB does not."""
    for f, found in zip(schema, piece.names, strict=True):
        if f.name not in columns or not holds_text(f.type.arrow):
            continue
        before = 0
        try:
            with open_parquet(piece.path) as file:
                for batch in file.iter_batches(columns=[found]):
                    if (bad := first_bad_text(batch.column(0))) is not None:
                        told = f"{piece.path}, row {before + bad + 1}: column {f.name}: the text is not UTF-8"
                        return DataError(INVALID, told, hint=HINT)
                    before += batch.num_rows
        except (pa.ArrowException, OSError):
            return None
    return None


def _first_bad(piece: ParquetPiece, schema: Schema, columns: tuple[str, ...]) -> tuple[int, Field, str | None] | None:
    """The number of that row, the column and its value."""
    worst: tuple[int, Field, str | None] | None = None
    with native_connection() as connection:
        for f, found, how in zip(schema, piece.names, piece.conversions, strict=True):
            if f.name not in columns or not how.checked:
                continue
            column = _name(found)
            if f.type.is_nested:
                at = _first_failing(connection, piece, how.sql.replace("{}", column))
                lost = f"{ROW_NUMBER} = {at}"
            elif f.type.limit is not None and f.type.limit.checked:
                lost = f"length(rtrim({column}, ' ')) > {f.type.limit.length}"
            elif f.type.is_timestamp:
                lost = f"epoch_ns({column}) % 1000 <> 0"
            else:
                lost = f"TRY_CAST({column} AS {f.type.duckdb}) IS NULL"
            bad = f"{column} IS NOT NULL AND {lost}" + ("" if f.nullable else f" OR {column} IS NULL")
            row = connection.execute(
                f"SELECT {ROW_NUMBER} + 1, CAST({column} AS VARCHAR) FROM {_rows(piece)} AND ({bad}) ORDER BY 1 LIMIT 1"
            ).fetchone()
            if row and (worst is None or row[0] < worst[0]):
                worst = row[0], f, row[1]
    return worst


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        "PARQUET_UNREADABLE", f"cannot read {path} as Parquet: {error}", hint="check that the file is whole"
    )


def _first_failing(connection: duckdb.DuckDBPyConnection, piece: ParquetPiece, sql: str) -> int:
    """The first row whose conversion fails, by bisection (TRY takes no call of error()); -1 if none does."""

    def fails(start: int, end: int) -> bool:
        rows = _rows(replace(piece, start=start, end=end))
        try:
            connection.execute(f"SELECT count(CAST({sql} AS VARCHAR)) FROM {rows}").fetchone()
        except duckdb.Error:
            return True
        return False

    good, bad = piece.start, piece.end
    if not fails(good, bad):
        return -1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(good, middle) else (middle, bad)
    return good


def _rows(piece: ParquetPiece) -> str:
    return (
        f"{native_scan([piece.path], numbered=True)} WHERE {ROW_NUMBER} >= {piece.start} AND {ROW_NUMBER} < {piece.end}"
    )


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
