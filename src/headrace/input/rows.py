"""Rows handed over by a program: whatever holds them, as Arrow in the declared types.

``db.insert`` takes Arrow tables, batches and readers, anything that exports an
Arrow stream (Polars, DuckDB), pandas, lists of dicts or tuples, and dicts of
columns. Columns are matched by name in any order and case (tuples by position).
A value is kept or refused, never changed: an int64 column goes into an ``int``
if its values fit, and the first one that does not is named.

>>> schema = (Field("part", STRING), Field("n", INT))
>>> to_arrow([{"n": 1, "part": "bolt"}, {"part": "nut"}], schema).to_pylist()
[{'part': 'bolt', 'n': 1}, {'part': 'nut', 'n': None}]
>>> to_arrow(pa.table({"part": ["bolt"], "n": [2**31]}), schema)
Traceback (most recent call last):
    ...
headrace.errors.DataError: [INSERT_BAD_VALUE] row 1, column n: 2147483648 does not fit in int
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.lacking import lacking, lacking_rows, settled
from headrace.base.utf8 import HINT, INVALID, first_bad_text
from headrace.errors import DataError
from headrace.input.conversion import FAILURES, check_types, convert, shown
from headrace.input.given import (
    BadItem,
    PandasObjects,
    column_of,
    fields_of,
    foreign,
    holds_objects,
    of_pandas,
    refuse_foreign_types,
    unknown_input,
)
from headrace.input.lengths import TooLong, first_too_long, fitted, too_long
from headrace.input.nested import RepeatedKey, check_keys, first_hole
from headrace.input.python_values import How, built
from headrace.input.spellings import first_failure
from headrace.types import INT, STRING, Field, Schema, arrow_schema

__all__ = ["INT", "STRING", "Field", "to_arrow"]


def to_arrow(data: Any, schema: Schema, *, zone: str = "UTC") -> pa.Table | pa.RecordBatchReader:
    """``data`` as rows of ``schema``; a reader for what arrives as a stream, else a table.

    * A column the schema does not have, or one that is there twice, is an error. So is a
      missing one, except one with a default, which it has then, and in dicts (one a row): what a dict leaves out
      is its default, or NULL.
    * Only conversions that keep the value: see docs/copy.md. A Python or NumPy float goes into
      a ``float`` column rounded, for Python has no narrower one.
    * A naive datetime in a ``timestamp`` column is a local time of ``zone``.
    * All of this holds of an array's elements and of a struct's fields, which go by name (in a
      tuple by position).
    """
    if isinstance(data, pa.Array):
        if not pa.types.is_struct(data.type) or data.null_count:
            raise unknown_input(data)
        data = pa.RecordBatch.from_struct_array(data)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _table(data, schema, zone)
    module = type(data).__module__.partition(".")[0]
    if module == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data, schema, zone)
    if module == "polars":
        with foreign(data):
            data = data.collect() if hasattr(data, "collect") else data
        if not hasattr(data, "columns"):
            raise unknown_input(data)
        match_columns(data.columns, schema)
        if any("\0" in name for kind in data.dtypes for name in fields_of(kind)):
            raise DataError("UNKNOWN_FIELD", "the name of a field has a NUL character", hint="rename it")
        refuse_foreign_types((name, data.get_column(name)) for name in data.columns)
    if isinstance(data, pa.RecordBatchReader):
        return _reader(data, schema, zone)
    if module == "pyarrow" and hasattr(data, "scanner"):  # a dataset
        with foreign(data):
            reader = data.scanner().to_reader()
        return _reader(reader, schema, zone)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (*FAILURES, AttributeError) as error:
            raise unknown_input(data) from error  # a column, for one, is no table
        return _reader(reader, schema, zone)
    if isinstance(data, Mapping):
        return _from_columns(data, schema, zone)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes) and getattr(data, "ndim", 1) != 0:
        with foreign(data):
            rows = list(data)
        return _from_rows(rows, schema, zone)
    raise unknown_input(data)


def _from_pandas(frame: Any, schema: Schema, zone: str) -> pa.Table:
    positions = match_columns(list(frame.columns), schema)
    if not len(frame):  # pandas types an empty column by guess
        return arrow_schema(schema).empty_table()
    columns = dict(zip(schema, positions, strict=True))
    objects = {f: i for f, i in columns.items() if i >= 0 and holds_objects(frame.dtypes.iloc[i])}
    typed = tuple(f for f in schema if f not in objects and columns[f] >= 0)
    try:
        table = pa.Table.from_pandas(frame.iloc[:, [columns[f] for f in typed]], preserve_index=False)
    except (*FAILURES, KeyError) as error:
        raise DataError("INSERT_BAD_VALUE", f"the pandas frame cannot become Arrow: {error}") from error
    found = dict(zip(typed, _table(table, typed, zone, loose=True).columns, strict=True))
    for f, i in objects.items():
        with foreign(frame):
            values = of_pandas(frame.iloc[:, i])
        found[f] = pa.chunked_array([_from_values(values, f, zone)])
    for f in (f for f, i in columns.items() if i < 0):
        found[f] = pa.chunked_array([lacking_rows(f, len(frame))])
    return pa.Table.from_arrays([found[f] for f in schema], schema=arrow_schema(schema))


def _reader(reader: pa.RecordBatchReader, schema: Schema, zone: str) -> pa.RecordBatchReader:
    """The same stream, converted a batch at a time."""
    positions = match_columns(reader.schema.names, schema)
    schema = tuple(map(settled, schema))
    for f, i in zip(schema, positions, strict=True):
        if i >= 0:
            check_types(reader.schema.field(i).type, f)

    def batches() -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in _read(reader):
            arrays = [
                _column(batch.column(i), f, zone, before) if i >= 0 else lacking_rows(f, batch.num_rows)
                for f, i in zip(schema, positions, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))
            before += batch.num_rows

    return pa.RecordBatchReader.from_batches(arrow_schema(schema), batches())


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        with foreign(reader):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


def _table(table: pa.Table, schema: Schema, zone: str, *, loose: bool = False) -> pa.Table:
    arrays = []
    for f, i in zip(schema, match_columns(table.schema.names, schema), strict=True):
        before, chunks = 0, []
        if i < 0:
            arrays.append(pa.chunked_array([lacking_rows(f, table.num_rows)]))
            continue
        for chunk in table.column(i).chunks:
            chunks.append(_column(chunk, f, zone, before, loose=loose))
            before += len(chunk)
        if not chunks:
            check_types(table.schema.field(i).type, f, loose=loose)
        arrays.append(pa.chunked_array(chunks, f.type.arrow))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def match_columns(given: Sequence[Any], schema: Schema, *, optional: bool = False) -> list[int]:
    """Where in ``given`` each column of ``schema`` is; -1 for a missing one if that is allowed or it has a default."""
    columns = {f.name.lower() for f in schema}
    expected = "the columns are " + ", ".join(f.name for f in schema)
    with foreign(None, "the name of a column"):
        found = [str(name) for name in given]
    lower = [name.lower() for name in found]
    if unknown := [n for n, key in zip(found, lower, strict=True) if key not in columns]:
        raise DataError("UNKNOWN_COLUMN", f"there is no column {', '.join(unknown)}", hint=expected)
    if len(set(lower)) < len(lower):
        repeated = sorted({key for key in lower if lower.count(key) > 1})
        raise DataError("REPEATED_COLUMN", f"{', '.join(repeated)} is there more than once", hint=expected)
    missing = [f.name for f in schema if f.name.lower() not in lower]
    if (needed := [f.name for f in schema if f.name in missing and f.default is None]) and not optional:
        raise DataError(
            "MISSING_COLUMN", f"the rows have no column {', '.join(needed)}", hint=f"{expected}; fill it with NULLs"
        )
    return [lower.index(f.name.lower()) if f.name not in missing else -1 for f in schema]


def _from_columns(data: Mapping[Any, Any], schema: Schema, zone: str) -> pa.Table:
    with foreign(data):
        values = [column_of(name, column) for name, column in data.items()]
    if len({len(column) for column in values}) > 1:
        lengths = ", ".join(f"{name} has {len(column)}" for name, column in zip(data, values, strict=True))
        raise DataError("INSERT_COLUMN_LENGTHS", f"columns of different lengths: {lengths}")
    positions = match_columns(list(data), schema)
    rows = len(values[0]) if values else 0
    arrays = [
        _from_values(values[i], f, zone) if i >= 0 else lacking_rows(f, rows)
        for f, i in zip(schema, positions, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _from_rows(rows: list[Any], schema: Schema, zone: str) -> pa.Table:
    columns: list[Sequence[Any]]
    if not rows:
        columns = [[] for _ in schema]
    elif all(isinstance(row, Mapping) for row in rows):
        with foreign(None, "a row"):
            names = list(dict.fromkeys(name for row in rows for name in row))
        positions = match_columns(names, schema, optional=True)
        keys = [names[i] if i >= 0 else None for i in positions]
        with foreign(None, "a row"):
            columns = [
                [row.get(key, value) for row in rows] for key, value in zip(keys, map(lacking, schema), strict=True)
            ]
    elif all(isinstance(row, tuple | list) for row in rows):
        lengths = [len(row) for row in rows]
        wrong = next((i for i, length in enumerate(lengths) if length != len(schema)), None)
        if wrong is not None:
            raise DataError(
                "INSERT_COLUMN_ARITY_MISMATCH",
                f"row {wrong + 1} has {lengths[wrong]} values for {len(schema)} columns",
                hint="the columns are " + ", ".join(f.name for f in schema),
            )
        columns = list(zip(*rows, strict=True))
    else:
        raise unknown_input(next(r for r in rows if not isinstance(r, Mapping) or not isinstance(rows[0], Mapping)))
    arrays = [_from_values(column, f, zone) for f, column in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _from_values(values: Any, f: Field, zone: str) -> pa.Array:
    """Python values (or an array of some library) as a column.

    Arrow infers the type from the values alone, so that converting stays one rule for all input.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        try:
            values = built(values, f, How(zone, isinstance(values, PandasObjects)))
        except BadItem as bad:
            raise DataError("INSERT_BAD_VALUE", f"row {bad.row + 1}, column {bad.path}: {bad.why}") from None
    return _column(values, f, zone, 0)


def _column(array: pa.Array, f: Field, zone: str, before: int, *, loose: bool = False) -> pa.Array:
    """One column converted and checked; ``before`` rows went before it."""
    check_types(array.type, f, loose=loose)
    try:
        result = convert(array, f.type, zone)
    except FAILURES:
        bad = first_failure(lambda part: convert(part, f.type, zone), array)
        if bad is None:
            raise
        raise DataError(
            "INSERT_BAD_VALUE",
            f"row {before + bad + 1}, column {f.name}: {shown(array[bad])} does not fit in {f.type.sql}",
        ) from None
    if (f.type.name == "string" or f.type.is_nested) and (bad := first_bad_text(result)) is not None:
        raise DataError(INVALID, f"row {before + bad + 1}, column {f.name}: the text is not UTF-8", hint=HINT)
    if f.type.is_limited:
        result = _in_length(result, f, before)
    if f.type.holds_maps:
        _check_maps(result, f, before)  # in the end: keys that were told apart by spaces may be the same now
    if not f.nullable and result.null_count:
        bad = pc.index(pc.is_null(result), True).as_py()
        raise DataError("NULL_IN_NOT_NULL", f"row {before + bad + 1}, column {f.name}: NULL in a NOT NULL column")
    if (hole := first_hole(result, f.type, f.name)) is not None:
        raise DataError("NULL_IN_NOT_NULL", f"row {before + hole[0] + 1}: NULL in {hole[1]}, which is NOT NULL")
    return result


def _check_maps(array: pa.Array, f: Field, before: int) -> None:
    try:
        check_keys(array, f.type)
    except RepeatedKey:
        bad = first_failure(lambda part: check_keys(part, f.type), array) or 0
        raise DataError(
            "DUPLICATED_MAP_KEY",
            f"row {before + bad + 1}, column {f.name}: a key is there twice in {shown(array[bad])}",
            hint="give each key once",
        ) from None


def _in_length(array: pa.Array, f: Field, before: int) -> pa.Array:
    try:
        return fitted(array, f.type)
    except TooLong:
        index, what = first_too_long(array, f)
        raise too_long(f"row {before + index + 1}, ", what) from None
