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

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DataError
from headrace.stream.given import column_of, fields_of, foreign, is_holder, kinds_of, refuse_depth, unknown_input
from headrace.stream.lengths import TooLong, first_too_long, fitted, too_long
from headrace.stream.nested import (
    RepeatedKey,
    as_list,
    as_map,
    as_struct,
    check_keys,
    first_hole,
    map_apart,
    taken_apart,
)
from headrace.stream.spellings import first_failure, in_zone
from headrace.stream.text import shorten
from headrace.types import INT, INTEGERS, STRING, Field, Schema, Type, arrow_schema, is_list
from headrace.utf8 import HINT, INVALID, first_bad_text
from headrace.values import python_values

__all__ = ["INT", "STRING", "Field", "to_arrow"]

_FAILURES = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError, TypeError)


def to_arrow(data: Any, schema: Schema, *, zone: str = "UTC") -> pa.Table | pa.RecordBatchReader:
    """``data`` as rows of ``schema``; a reader for what arrives as a stream, else a table.

    * A column the schema does not have, or one that is there twice, is an error. So is a
      missing one, except in dicts (one a row): what a dict leaves out is NULL.
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
        found = _from_pandas(data)
        if not found.num_rows:  # pandas types an empty column by guess
            match_columns(found.schema.names, schema)
            return arrow_schema(schema).empty_table()
        return _table(found, schema, zone, loose=True)
    if module == "polars":
        with foreign(data):
            data = data.collect() if hasattr(data, "collect") else data
        if not hasattr(data, "columns"):
            raise unknown_input(data)
        match_columns(data.columns, schema)
        if any("\0" in name for kind in data.dtypes for name in fields_of(kind)):
            raise DataError("UNKNOWN_FIELD", "the name of a field has a NUL character", hint="rename it")
    if isinstance(data, pa.RecordBatchReader):
        return _reader(data, schema, zone)
    if module == "pyarrow" and hasattr(data, "scanner"):  # a dataset
        with foreign(data):
            reader = data.scanner().to_reader()
        return _reader(reader, schema, zone)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (*_FAILURES, AttributeError) as error:
            raise unknown_input(data) from error  # a column, for one, is no table
        return _reader(reader, schema, zone)
    if isinstance(data, Mapping):
        return _from_columns(data, schema, zone)
    if isinstance(data, Iterable) and not isinstance(data, str | bytes) and getattr(data, "ndim", 1) != 0:
        with foreign(data):
            rows = list(data)
        return _from_rows(rows, schema, zone)
    raise unknown_input(data)


def _from_pandas(frame: Any) -> pa.Table:
    for place, name in enumerate(frame.columns):
        if str(frame.dtypes.iloc[place]) == "object":
            refuse_depth(frame.iloc[:, place], name)
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (*_FAILURES, KeyError) as error:
        raise DataError("INSERT_BAD_VALUE", f"the pandas frame cannot become Arrow: {error}") from error


def _reader(reader: pa.RecordBatchReader, schema: Schema, zone: str) -> pa.RecordBatchReader:
    """The same stream, converted a batch at a time."""
    positions = match_columns(reader.schema.names, schema)
    for f, i in zip(schema, positions, strict=True):
        _check_types(reader.schema.field(i).type, f)

    def batches() -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in _read(reader):
            arrays = [_column(batch.column(i), f, zone, before) for f, i in zip(schema, positions, strict=True)]
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
        for chunk in table.column(i).chunks:
            chunks.append(_column(chunk, f, zone, before, loose=loose))
            before += len(chunk)
        if not chunks:
            _check_types(table.schema.field(i).type, f, loose=loose)
        arrays.append(pa.chunked_array(chunks, f.type.arrow))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def match_columns(found: Sequence[str], schema: Schema, *, optional: bool = False) -> list[int]:
    """Where in ``found`` each column of ``schema`` is; -1 for a missing one if that is allowed."""
    columns = {f.name.lower() for f in schema}
    expected = "the columns are " + ", ".join(f.name for f in schema)
    lower = [str(name).lower() for name in found]
    if unknown := [str(n) for n, key in zip(found, lower, strict=True) if key not in columns]:
        raise DataError("UNKNOWN_COLUMN", f"there is no column {', '.join(unknown)}", hint=expected)
    if len(set(lower)) < len(lower):
        repeated = sorted({key for key in lower if lower.count(key) > 1})
        raise DataError("REPEATED_COLUMN", f"{', '.join(repeated)} is there more than once", hint=expected)
    missing = [f.name for f in schema if f.name.lower() not in lower]
    if missing and not optional:
        raise DataError(
            "MISSING_COLUMN", f"the rows have no column {', '.join(missing)}", hint=f"{expected}; fill it with NULLs"
        )
    return [lower.index(f.name.lower()) if f.name not in missing else -1 for f in schema]


def _from_columns(data: Mapping[Any, Any], schema: Schema, zone: str) -> pa.Table:
    with foreign(data):
        values = [column_of(name, column) for name, column in data.items()]
    if len({len(column) for column in values}) > 1:
        lengths = ", ".join(f"{name} has {len(column)}" for name, column in zip(data, values, strict=True))
        raise DataError("INSERT_COLUMN_LENGTHS", f"columns of different lengths: {lengths}")
    positions = match_columns([str(n) for n in data], schema)
    arrays = [_from_values(values[i], f, zone) for f, i in zip(schema, positions, strict=True)]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _from_rows(rows: list[Any], schema: Schema, zone: str) -> pa.Table:
    columns: list[Sequence[Any]]
    if not rows:
        columns = [[] for _ in schema]
    elif all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        positions = match_columns([str(n) for n in names], schema, optional=True)
        keys = [names[i] if i >= 0 else None for i in positions]
        columns = [[row.get(key) for row in rows] for key in keys]
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

    Arrow infers the type from the values alone, so that converting stays one rule for all
    input: given the type, it would take an int for a timestamp.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        try:
            values = _built(values, f, zone)
        except _BadItem as bad:
            raise DataError("INSERT_BAD_VALUE", f"row {bad.row + 1}, column {bad.path}: {bad.why}") from None
    return _column(values, f, zone, 0)


class _BadItem(Exception):
    """A Python value that is none of its type: the row that has it, where in the row, and why."""

    def __init__(self, row: int, path: str, why: str) -> None:
        self.row = row
        self.path = path
        self.why = why
        super().__init__(row, path, why)


def _built(values: Any, f: Field, zone: str) -> pa.Array:
    """Python values as Arrow: levels taken apart until there are plain values, whose type Arrow infers."""
    if f.type.name == "array":
        return _built_lists(values, f, zone)
    if f.type.name == "struct":
        return _built_structs(values, f, zone)
    if f.type.name == "map":
        return _built_maps(values, f, zone)
    try:
        found = _inferred(values, f, zone)
    except _FAILURES as error:
        bad = first_failure(lambda part: _inferred(part, f, zone), values)
        raise _BadItem(bad or 0, f.name, str(error)) from error
    if f.type.name == "float" and pa.types.is_float64(found.type):
        found = found.cast(pa.float32())
    return found


def _built_lists(values: Any, f: Field, zone: str) -> pa.Array:
    lengths: list[int | None] = []
    elements: list[Any] = []
    owners: list[int] = []
    for row, value in enumerate(values):
        if value is None:
            lengths.append(None)
            continue
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _BadItem(row, f.name, f"{shorten(repr(value))} is no {f.type.sql}")
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        lengths.append(len(items))
        elements += items
        owners += [row] * len(items)
    element = Field(f.name, f.type.element)
    try:
        inner = _converted(_built(elements, element, zone), element, zone)
    except _BadItem as bad:
        raise _BadItem(owners[bad.row], bad.path, bad.why) from None
    return as_list(pa.array(lengths, pa.int64()), inner, f.type.arrow)


def _built_maps(values: Any, f: Field, zone: str) -> pa.Array:
    lengths: list[int | None] = []
    keys: list[Any] = []
    items: list[Any] = []
    owners: list[int] = []
    for row, value in enumerate(values):
        if value is None:
            lengths.append(None)
            continue
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
            raise _BadItem(row, f.name, f"{shorten(repr(value))} is no {f.type.sql}")
        if any(key is None for key, _ in pairs):
            raise DataError("NULL_MAP_KEY", f"row {row + 1}, column {f.name}: NULL is no key of a map")
        lengths.append(len(pairs))
        keys += [key for key, _ in pairs]
        items += [item for _, item in pairs]
        owners += [row] * len(pairs)
    key, item = Field(f"{f.name} (a key)", f.type.parts[0].type), Field(f.name, f.type.parts[1].type)
    try:
        found = _converted(_built(keys, key, zone), key, zone)
        values = _converted(_built(items, item, zone), item, zone)
    except _BadItem as bad:
        raise _BadItem(owners[bad.row], bad.path, bad.why) from None
    return as_map(pa.array(lengths, pa.int64()), found, values, f.type.arrow)


def _built_structs(values: Any, f: Field, zone: str) -> pa.Array:
    names = [p.name.lower() for p in f.type.parts]
    columns: list[list[Any]] = [[] for _ in names]
    missing = []
    for row, value in enumerate(values):
        missing.append(value is None)
        given: Mapping[Any, Any] = {}
        if hasattr(value, "asDict"):  # a Row of PySpark
            value = value.asDict()
        if isinstance(value, Mapping):
            given = {str(name).lower(): item for name, item in value.items()}
            unknown = [str(name) for name in value if str(name).lower() not in names]
            if unknown or len(given) < len(value):
                why = f"there is no field {', '.join(unknown)}" if unknown else "a field is there more than once"
                raise _BadItem(row, f.name, f"{why} in {f.type.sql}")
        elif isinstance(value, tuple | list) and len(value) == len(names):
            given = dict(zip(names, value, strict=True))
        elif value is not None:
            raise _BadItem(row, f.name, f"{shorten(repr(value))} is no {f.type.sql}")
        for name, column in zip(names, columns, strict=True):
            column.append(given.get(name))
    fields = [Field(f"{f.name}.{p.name}", p.type) for p in f.type.parts]
    inner = [_converted(_built(c, part, zone), part, zone) for c, part in zip(columns, fields, strict=True)]
    return as_struct(inner, pa.array(missing, pa.bool_()), f.type.arrow)


def _converted(array: pa.Array, f: Field, zone: str) -> pa.Array:
    """Values of a level below, in their type."""
    _check_types(array.type, f)
    try:
        return _convert(array, f.type, zone)
    except _FAILURES:
        bad = first_failure(lambda part: _convert(part, f.type, zone), array)
        if bad is None:
            raise
        raise _BadItem(bad, f.name, f"{_shown(array[bad])} does not fit in {f.type.sql}") from None


def _inferred(values: Any, f: Field, zone: str) -> pa.Array:
    kinds = kinds_of(values)
    if any(map(is_holder, kinds)):
        refuse_depth(values, f.name)
    mixed = len(kinds) > 1 and not kinds.isdisjoint((np.datetime64, np.timedelta64))
    if mixed or {str, bytes} <= kinds or {datetime.date, datetime.datetime} <= kinds:
        # Arrow would quietly make the one into the other, or end the process
        raise pa.ArrowInvalid(f"values of different types: {', '.join(sorted(k.__name__ for k in kinds))}")
    if f.type.is_decimal and int in kinds and bool not in kinds and float not in kinds:
        return pa.array(values, pa.decimal256(76, f.type.scale))  # Python's integers may be past 64 bits
    if f.type.is_timestamp and datetime.datetime in kinds:
        if odd := sorted(k.__name__ for k in kinds if not issubclass(k, datetime.datetime)):
            raise pa.ArrowInvalid(f"values of different types: datetime, {', '.join(odd)}")
        aware = [None if v is None or v.tzinfo is None else v for v in values]
        naive = [None if v is None or v.tzinfo is not None else v for v in values]
        local = pa.array(naive, pa.timestamp("us"))
        if local.null_count == len(local):
            return pa.array(aware, pa.timestamp("us", tz="UTC"))
        if f.type.name == "timestamp":
            return pc.coalesce(pa.array(aware, pa.timestamp("us", tz="UTC")), in_zone(local, zone))
        if any(aware):
            raise pa.ArrowInvalid("timestamps with and without a zone")
        return local
    return pa.array(values)


def _check_types(found: pa.DataType, f: Field, *, loose: bool = False) -> None:
    """An error if no value of Arrow type ``found`` ever becomes the column's type.

    ``loose`` structs, made of dicts, may lack fields.
    """
    if pa.types.is_dictionary(found):
        found = found.value_type
    if f.type.name == "array" and is_list(found):
        _check_types(found.value_type, Field(f.name, f.type.element), loose=loose)
    elif f.type.name == "struct" and pa.types.is_struct(found):
        _check_fields(found, f, loose=loose)
    elif f.type.name == "map" and pa.types.is_map(found):
        _check_types(found.key_type, Field(f.name, f.type.parts[0].type), loose=loose)
        _check_types(found.item_type, Field(f.name, f.type.parts[1].type), loose=loose)
    elif not pa.types.is_null(found) and (
        f.type.is_nested or pa.types.is_nested(found) or not _convertible(found, f.type)
    ):
        raise DataError(
            "INSERT_TYPE_MISMATCH",
            f"column {f.name} is {f.type.sql}, but the rows have {found}",
            hint=_how_to_convert(found, f),
        )


def _how_to_convert(found: pa.DataType, f: Field) -> str:
    """What to write so that rows of this type fit the column."""
    if f.type.name == "decimal" and pa.types.is_floating(found):
        wanted = f"pa.decimal128({f.type.precision}, {f.type.scale})"
        return f"a float is not quite what it prints: give decimal.Decimal(str(value)), or an Arrow column of {wanted}"
    if f.type.name == "string":
        return "give text: str(value), or the column cast to string"
    return f"convert the column to {f.type.sql} first"


def _check_fields(found: pa.StructType, f: Field, *, loose: bool) -> None:
    expected = f"its fields are {', '.join(p.name for p in f.type.parts)}"
    given = [g.name.lower() for g in found]
    if unknown := [g.name for g in found if f.type.part(g.name) is None]:
        raise DataError("UNKNOWN_FIELD", f"column {f.name} has no field {', '.join(unknown)}", hint=expected)
    if len(set(given)) < len(given):
        raise DataError("REPEATED_FIELD", f"column {f.name} has a field more than once: {found}", hint=expected)
    for part in f.type.parts:
        if part.name.lower() in given:
            below = found.field(given.index(part.name.lower())).type
            _check_types(below, Field(f"{f.name}.{part.name}", part.type), loose=loose)
        elif not loose:
            raise DataError(
                "MISSING_FIELD",
                f"column {f.name}: the rows have no field {part.name}",
                hint=f"{expected}; fill it with NULLs",
            )


def _convertible(found: pa.DataType, wanted: Type) -> bool:
    t = pa.types
    whole, real, exact = t.is_integer(found), t.is_floating(found), t.is_decimal(found)
    text = t.is_string(found) or t.is_large_string(found) or t.is_string_view(found)
    blob = t.is_binary(found) or t.is_large_binary(found) or t.is_binary_view(found) or t.is_fixed_size_binary(found)
    time = t.is_timestamp(found)
    fits: dict[str, bool] = {
        "boolean": t.is_boolean(found),
        **dict.fromkeys((i.name for i in INTEGERS), whole or real or exact),
        "decimal": whole or exact,
        "float": whole or real,
        "double": whole or real,
        "string": text,
        "binary": blob,
        "date": t.is_date(found) or (time and found.tz is None),
        "timestamp": time,
        "timestamp_ntz": time and found.tz is None,
    }
    return bool(t.is_null(found)) or fits[wanted.name]


def _column(array: pa.Array, f: Field, zone: str, before: int, *, loose: bool = False) -> pa.Array:
    """One column converted and checked; ``before`` rows went before it."""
    _check_types(array.type, f, loose=loose)
    try:
        result = _convert(array, f.type, zone)
    except _FAILURES:
        bad = first_failure(lambda part: _convert(part, f.type, zone), array)
        if bad is None:
            raise
        raise DataError(
            "INSERT_BAD_VALUE",
            f"row {before + bad + 1}, column {f.name}: {_shown(array[bad])} does not fit in {f.type.sql}",
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
            f"row {before + bad + 1}, column {f.name}: a key is there twice in {_shown(array[bad])}",
            hint="give each key once",
        ) from None


def _in_length(array: pa.Array, f: Field, before: int) -> pa.Array:
    try:
        return fitted(array, f.type)
    except TooLong:
        index, what = first_too_long(array, f)
        raise too_long(f"row {before + index + 1}, ", what) from None


def _shown(value: pa.Scalar) -> str:
    if pa.types.is_nested(value.type):
        return shorten(str(python_values(pa.chunked_array([pa.array([value])]))[0]))
    return str(value.cast(pa.string()).as_py())


def _convert(array: pa.Array, wanted: Type, zone: str) -> pa.Array:
    """The values in the wanted type; an error from Arrow if one cannot be kept."""
    t = pa.types
    if array.type == wanted.arrow:
        return array
    if t.is_dictionary(array.type):
        if t.is_string_view(array.type.value_type) or t.is_binary_view(array.type.value_type):
            # Polars' categories; Arrow cannot take from views
            plain = pa.large_string() if t.is_string_view(array.type.value_type) else pa.large_binary()
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
        return _convert(array.dictionary_decode(), wanted, zone)
    if wanted.is_nested:
        return _convert_nested(array, wanted, zone)
    if wanted.is_decimal and t.is_integer(array.type):
        array = array.cast(pa.decimal128(38, 0))  # Arrow would refuse by type what may fit by value
    if t.is_float16(array.type):
        array = array.cast(pa.float32())
    if wanted.name == "timestamp" and t.is_timestamp(array.type) and array.type.tz is None:
        return in_zone(array.cast(pa.timestamp("us")), zone)
    result = array.cast(wanted.arrow)
    narrowed = wanted.name == "float" and t.is_float64(array.type)
    if narrowed or (wanted.name == "date" and t.is_timestamp(array.type)):
        # the two casts that lose without a word: go back and compare (NaN is itself)
        same = pc.equal(result.cast(array.type), array)
        same = pc.or_(same, pc.is_nan(array)) if narrowed else same
        if not pc.all(same).as_py():
            raise pa.ArrowInvalid("value changed")
    return result


def _convert_nested(array: pa.Array, wanted: Type, zone: str) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted.arrow)
    if wanted.name == "array":
        lengths, elements = taken_apart(array)
        return as_list(lengths, _convert(elements, wanted.element, zone), wanted.arrow)
    if wanted.name == "map":
        lengths, keys, items = map_apart(array)
        key, item = (p.type for p in wanted.parts)
        return as_map(lengths, _convert(keys, key, zone), _convert(items, item, zone), wanted.arrow)
    given = dict(zip((f.name.lower() for f in array.type), array.flatten(), strict=True))
    nothing = pa.nulls(len(array))
    fields = [_convert(given.get(p.name.lower(), nothing), p.type, zone) for p in wanted.parts]
    return as_struct(fields, array.is_null(), wanted.arrow)
