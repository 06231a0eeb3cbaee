"""Arrow values in a column's declared type: each is kept, or Arrow's error says that it cannot be.

>>> convert(pa.array([1.0, None]), INT, "UTC").to_pylist()
[1, None]
>>> convert(pa.array([1.5]), INT, "UTC")
Traceback (most recent call last):
    ...
pyarrow.lib.ArrowInvalid: Float value 1.500000 was truncated converting to int32
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.values import python_values
from headrace.errors import DataError
from headrace.input.nested import as_list, as_map, as_struct, map_apart, taken_apart
from headrace.input.spellings import in_zone
from headrace.input.text import shorten
from headrace.types import INT, INTEGERS, Field, Type, is_list

__all__ = ["FAILURES", "INT", "check_types", "convert", "shown"]

FAILURES = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError, TypeError)
"""What Arrow raises for values it does not take."""


def check_types(found: pa.DataType, f: Field, *, loose: bool = False) -> None:
    """An error if no value of Arrow type ``found`` ever becomes the column's type.

    ``loose`` structs, made of dicts, may lack fields.
    """
    if pa.types.is_dictionary(found):
        found = found.value_type
    if f.type.name == "array" and is_list(found):
        check_types(found.value_type, Field(f.name, f.type.element), loose=loose)
    elif f.type.name == "struct" and pa.types.is_struct(found):
        _check_fields(found, f, loose=loose)
    elif f.type.name == "map" and pa.types.is_map(found):
        check_types(found.key_type, Field(f.name, f.type.parts[0].type), loose=loose)
        check_types(found.item_type, Field(f.name, f.type.parts[1].type), loose=loose)
    elif not pa.types.is_null(found) and (
        f.type.is_nested or pa.types.is_nested(found) or not _convertible(found, f.type)
    ):
        raise DataError(
            "INSERT_TYPE_MISMATCH",
            f"column {f.name} is {f.type.sql}, but the rows have {found}",
            hint=_how_toconvert(found, f),
        )


def _how_toconvert(found: pa.DataType, f: Field) -> str:
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
            check_types(below, Field(f"{f.name}.{part.name}", part.type), loose=loose)
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


def shown(value: pa.Scalar) -> str:
    if pa.types.is_nested(value.type):
        return shorten(str(python_values(pa.chunked_array([pa.array([value])]))[0]))
    return str(value.cast(pa.string()).as_py())


def convert(array: pa.Array, wanted: Type, zone: str) -> pa.Array:
    """The values in the wanted type; an error from Arrow if one cannot be kept."""
    t = pa.types
    if array.type == wanted.arrow:
        return array
    if t.is_dictionary(array.type):
        if t.is_string_view(array.type.value_type) or t.is_binary_view(array.type.value_type):
            # Polars' categories; Arrow cannot take from views
            plain = pa.large_string() if t.is_string_view(array.type.value_type) else pa.large_binary()
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
        return convert(array.dictionary_decode(), wanted, zone)
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
        return as_list(lengths, convert(elements, wanted.element, zone), wanted.arrow)
    if wanted.name == "map":
        lengths, keys, items = map_apart(array)
        key, item = (p.type for p in wanted.parts)
        return as_map(lengths, convert(keys, key, zone), convert(items, item, zone), wanted.arrow)
    given = dict(zip((f.name.lower() for f in array.type), array.flatten(), strict=True))
    nothing = pa.nulls(len(array))
    fields = [convert(given.get(p.name.lower(), nothing), p.type, zone) for p in wanted.parts]
    return as_struct(fields, array.is_null(), wanted.arrow)
