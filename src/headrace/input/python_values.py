"""Python values as Arrow: levels taken apart until there are plain values, whose type Arrow infers.

Given the type, Arrow would take an int for a timestamp; inferring it, Arrow drops what Python's datetime has no room
for, and makes days of times. So the types of the values are looked at first, all at once, and what Arrow would change
is refused. Whoever wrote the values wrote code that runs here too: what fails there is named.

>>> built([[1, 2], None], Field("v", parse_type("array<int>")), How("UTC")).to_pylist()
[[1, 2], None]
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DataError
from headrace.input.conversion import FAILURES, check_types, convert, shown
from headrace.input.given import BadItem, foreign, is_holder, kinds_of, printed, refuse_depth
from headrace.input.nested import as_list, as_map, as_struct
from headrace.input.spellings import first_failure, in_zone
from headrace.types import Field, parse_type

__all__ = ["How", "built", "parse_type"]


class How(NamedTuple):
    """In which zone naive datetimes are local, and whether NaN stands for NULL, as in a pandas column of objects."""

    zone: str
    nan_is_null: bool = False


def built(values: Any, f: Field, how: How) -> pa.Array:
    """The values as Arrow, of whatever type keeps them; :class:`BadItem` for one that is none of the column's."""
    values = _without_missing(values, how)
    if f.type.name == "array":
        return _built_lists(values, f, how)
    if f.type.name == "struct":
        return _built_structs(values, f, how)
    if f.type.name == "map":
        return _built_maps(values, f, how)
    with _values_of(f):
        try:
            found = _inferred(values, f, how)
        except FAILURES as error:
            bad = first_failure(lambda part: _inferred(part, f, how), values)
            raise BadItem(bad or 0, f.name, str(error)) from error
    if f.type.name == "float" and pa.types.is_float64(found.type):
        found = found.cast(pa.float32())
    return found


def _built_lists(values: Any, f: Field, how: How) -> pa.Array:
    lengths: list[int | None] = []
    elements: list[Any] = []
    owners: list[int] = []
    with _values_of(f):
        for row, value in enumerate(values):
            if value is None:
                lengths.append(None)
                continue
            items = _items(value)
            if items is None:
                raise BadItem(row, f.name, f"{printed(value)} is no {f.type.sql}")
            lengths.append(len(items))
            elements += items
            owners += [row] * len(items)
    element = Field(f.name, f.type.element)
    try:
        inner = _converted(built(elements, element, how), element, how)
    except BadItem as bad:
        raise BadItem(owners[bad.row], bad.path, bad.why) from None
    return as_list(pa.array(lengths, pa.int64()), inner, f.type.arrow)


def _items(value: Any) -> list[Any] | None:
    """What a list, an array of some library or another sequence holds; none of a value that is no such thing."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return None
    if hasattr(value, "tolist") and getattr(getattr(value, "dtype", None), "kind", "") != "M":
        found = value.tolist()
        return found if isinstance(found, list) else None
    return list(value)  # NumPy's times too: as a list they may be bare numbers


def _built_maps(values: Any, f: Field, how: How) -> pa.Array:
    lengths: list[int | None] = []
    keys: list[Any] = []
    items: list[Any] = []
    owners: list[int] = []
    with _values_of(f):
        for row, value in enumerate(values):
            if value is None:
                lengths.append(None)
                continue
            pairs = list(value.items()) if isinstance(value, Mapping) else value
            if not isinstance(pairs, list | tuple) or not all(map(_is_pair, pairs)):
                raise BadItem(row, f.name, f"{printed(value)} is no {f.type.sql}")
            if any(key is None for key, _ in pairs):
                raise DataError("NULL_MAP_KEY", f"row {row + 1}, column {f.name}: NULL is no key of a map")
            lengths.append(len(pairs))
            keys += [key for key, _ in pairs]
            items += [item for _, item in pairs]
            owners += [row] * len(pairs)
    key, item = Field(f"{f.name} (a key)", f.type.parts[0].type), Field(f.name, f.type.parts[1].type)
    try:
        found = _converted(built(keys, key, how), key, how)
        values = _converted(built(items, item, how), item, how)
    except BadItem as bad:
        raise BadItem(owners[bad.row], bad.path, bad.why) from None
    return as_map(pa.array(lengths, pa.int64()), found, values, f.type.arrow)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _built_structs(values: Any, f: Field, how: How) -> pa.Array:
    names = [p.name.lower() for p in f.type.parts]
    columns: list[list[Any]] = [[] for _ in names]
    missing = []
    with _values_of(f):
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
                    raise BadItem(row, f.name, f"{why} in {f.type.sql}")
            elif isinstance(value, tuple | list) and len(value) == len(names):
                given = dict(zip(names, value, strict=True))
            elif value is not None:
                raise BadItem(row, f.name, f"{printed(value)} is no {f.type.sql}")
            for name, column in zip(names, columns, strict=True):
                column.append(given.get(name))
    fields = [Field(f"{f.name}.{p.name}", p.type) for p in f.type.parts]
    inner = [_converted(built(c, part, how), part, how) for c, part in zip(columns, fields, strict=True)]
    return as_struct(inner, pa.array(missing, pa.bool_()), f.type.arrow)


def _converted(array: pa.Array, f: Field, how: How) -> pa.Array:
    """Values of a level below, in their type."""
    check_types(array.type, f)
    try:
        return convert(array, f.type, how.zone)
    except FAILURES:
        bad = first_failure(lambda part: convert(part, f.type, how.zone), array)
        if bad is None:
            raise
        raise BadItem(bad, f.name, f"{shown(array[bad])} does not fit in {f.type.sql}") from None


def _inferred(values: Any, f: Field, how: How) -> pa.Array:
    kinds = kinds_of(values)
    if any(map(is_holder, kinds)):
        refuse_depth(values, f.name)
    times = {k for k in kinds if issubclass(k, datetime.datetime)}
    mixed = len(kinds) > 1 and not kinds.isdisjoint((np.datetime64, np.timedelta64))
    days_among_times = bool(times) and _any(kinds - times, datetime.date)
    if mixed or days_among_times or (_any(kinds, str) and _any(kinds, bytes)):
        # Arrow would quietly make the one into the other, or end the process
        raise pa.ArrowInvalid(f"values of different types: {', '.join(sorted(k.__name__ for k in kinds))}")
    if f.type.is_decimal and int in kinds and bool not in kinds and float not in kinds:
        return pa.array(values, pa.decimal256(76, f.type.scale))  # Python's integers may be past 64 bits
    if times and (f.type.is_timestamp or f.type.name == "date"):
        return _times(values, kinds, f, how)
    return pa.array(values)


def _any(kinds: set[type], base: type) -> bool:
    return any(issubclass(k, base) for k in kinds)


def _times(values: Any, kinds: set[type], f: Field, how: How) -> pa.Array:
    """Datetimes, among them subclasses that may be finer than Arrow takes a datetime for, as pandas' are."""
    if odd := sorted(k.__name__ for k in kinds if not issubclass(k, datetime.datetime)):
        raise pa.ArrowInvalid(f"values of different types: datetime, {', '.join(odd)}")
    fine = {k for k in kinds if hasattr(k, "nanosecond")}
    if fine and (found := next((v for v in values if type(v) in fine and v.nanosecond), None)) is not None:
        raise pa.ArrowInvalid(f"{found} has nanoseconds, which do not fit in {f.type.sql}")
    aware = [None if v is None or v.tzinfo is None else v for v in values]
    naive = [None if v is None or v.tzinfo is not None else v for v in values]
    local = pa.array(naive, pa.timestamp("us"))
    if local.null_count == len(local):
        return pa.array(aware, pa.timestamp("us", tz="UTC"))
    if f.type.name == "timestamp":
        return pc.coalesce(pa.array(aware, pa.timestamp("us", tz="UTC")), in_zone(local, how.zone))
    if any(aware):
        raise pa.ArrowInvalid("timestamps with and without a zone")
    return local


def _without_missing(values: Any, how: How) -> Any:
    """The values with ``None`` for what pandas has instead."""
    kinds = kinds_of(values)
    blank = {k for k in kinds if k.__module__.startswith("pandas.") and k.__name__ in ("NaTType", "NAType")}
    maybe = {k for k in kinds if issubclass(k, float | np.floating)} if how.nan_is_null else set()
    if not blank and not maybe:
        return values
    return [None if type(v) in blank or (type(v) in maybe and v != v) else v for v in values]


def _values_of(f: Field) -> AbstractContextManager[None]:
    return foreign(None, f"a value of column {f.name}")
