"""Values of JSON as columns: which kinds a type takes, and what their text spells.

What is taken has the value Spark's JSON reader gives it; what would be rounded,
cut or guessed is refused (docs/copy.md has the list).

>>> from headrace.input.json_scan import Scanner
>>> _, (n,) = Scanner(["n"], ascii_only=True).locate(b'{"n": 1.10}\\n{"n": "2.2"}\\n')
>>> [str(v) for v in convert(n, decimal(5, 2), "UTC").to_pylist()]
['1.10', '2.20']
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.input import spellings
from headrace.input.json_scan import (
    BOOLEAN,
    MISSING,
    NESTED,
    NUMBER,
    STRING,
    WORD,
    Located,
    NotJson,
    Scanner,
    elements,
    entries,
)
from headrace.input.nested import as_list, as_map, as_struct
from headrace.types import TIMESTAMP, Type, decimal

__all__ = ["EXPECTED", "convert", "decimal"]

_WORDS = ["NaN", "Infinity", "-Infinity"]
_TAKEN: dict[str, tuple[int, ...]] = {
    "boolean": (BOOLEAN,),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), (NUMBER,)),
    "decimal": (NUMBER, STRING),
    "float": (NUMBER, WORD, STRING),
    "double": (NUMBER, WORD, STRING),
    "binary": (STRING,),
    "date": (STRING,),
    "timestamp": (STRING, NUMBER),
    "timestamp_ntz": (STRING,),
}

EXPECTED = {
    **{
        t: f"{text}, without quotes"
        for t, text in spellings.EXPECTED.items()
        if t in _TAKEN and STRING not in _TAKEN[t]
    },
    "decimal": spellings.EXPECTED["decimal"],
    "float": "write a number, or NaN, Infinity or -Infinity, in quotes or without",
    "double": "write a number, or NaN, Infinity or -Infinity, in quotes or without",
    "string": "any value goes into a string",
    "binary": "write a string of base64",
    "date": 'write it as "2024-12-31"',
    "timestamp": 'write it as "2024-12-31 23:59:59.999999", with or without an offset, or as whole seconds since 1970',
    "timestamp_ntz": 'write it as "2024-12-31 23:59:59.999999", without an offset',
    "array": "write a list of such values: [1, 2, null]",
    "struct": 'write an object: {"field": value, …}; fields that are left out are NULL, further ones are not read',
    "map": 'write an object of such values: {"key": value, …}',
}
"""What to write instead, by type."""


def convert(column: Located, type: Type, zone: str) -> pa.Array:
    """The column in its declared type; an error from Arrow or a ValueError if a value cannot be kept."""
    if type.name == "string":
        return column.text
    if type.is_nested:
        return _nested(column, type, zone)
    taken = np.isin(column.kinds, (0, *_TAKEN[type.name]))
    if not taken.all():
        raise ValueError("a value of another kind")
    if type.name == "binary":
        return _binary(column.text)
    if type.is_float:
        return _floats(column, type)
    try:
        return _usual(column, type, zone)
    except pa.ArrowException:
        return _timestamps(column, zone) if type.name == "timestamp" else spellings.read(column.text, type, zone)


def _usual(column: Located, type: Type, zone: str) -> pa.Array:
    """The spellings nearly all files have, without looking for others: the same values, or an error."""
    if type.name == "timestamp":
        # a number in the column is a text that this cast refuses
        return spellings.in_zone(pc.cast(column.text, pa.timestamp("us")), zone)
    values = pc.cast(column.text, type.arrow)
    if type.is_decimal:
        values.validate(full=True)  # the cast lets 1000 into a decimal(5,2)
    return values


def _only(column: Located, *kinds: int) -> pa.Array:
    """The texts of these kinds, NULL elsewhere."""
    return pc.if_else(pa.array(np.isin(column.kinds, kinds)), column.text, pa.scalar(None, pa.string()))


def _floats(column: Located, type: Type) -> pa.Array:
    """Numbers; strings spell only what JSON numbers cannot."""
    words = _only(column, WORD, STRING)
    if not pc.all(pc.is_in(words.drop_null(), pa.array(_WORDS)), min_count=0).as_py():
        raise ValueError("a string that is no NaN or infinity")
    # an integer has no negative zero
    numbers = pc.replace_substring_regex(_only(column, NUMBER), r"^-0$", "0")
    return pc.coalesce(pc.cast(numbers, type.arrow), pc.cast(words, type.arrow))


def _timestamps(column: Located, zone: str) -> pa.Array:
    """Instants by text, or by whole seconds since 1970."""
    seconds = pc.multiply_checked(pc.cast(_only(column, NUMBER), pa.int64()), 1_000_000)
    instants = pc.cast(seconds, pa.timestamp("us", tz="UTC"))
    return pc.coalesce(spellings.read(_only(column, STRING), TIMESTAMP, zone), instants)


def _binary(text: Any) -> pa.Array:
    values = (None if v is None else base64.b64decode(v, validate=True) for v in text.to_pylist())
    return pa.array(values, pa.binary())


def _nested(column: Located, type: Type, zone: str) -> pa.Array:
    """Lists and objects, located anew in their own text: a level below is columns again."""
    present = column.kinds != MISSING
    texts = column.text.drop_null().to_pylist()
    opening = "[" if type.name == "array" else "{"
    if not (column.kinds[present] == NESTED).all() or not all(text[0] == opening for text in texts):
        raise ValueError("a value of another kind")
    if type.name == "array":
        counts, located = elements(texts)
        return as_list(_lengths(counts, present), convert(located, type.element, zone), type.arrow)
    if type.name == "map":
        counts, keys, located = entries(texts)
        values = convert(located, type.parts[1].type, zone)
        return as_map(_lengths(counts, present), pa.array(keys, pa.string()), values, type.arrow)
    names = [part.name for part in type.parts]
    try:
        _, columns = Scanner(names, ascii_only=all(map(str.isascii, names))).locate("\n".join(texts).encode())
    except NotJson as refusal:
        raise ValueError(refusal.what) from None
    fields = [convert(c, part.type, zone) for c, part in zip(columns, type.parts, strict=True)]
    if len(texts) < len(column):
        places = pa.array(np.cumsum(present) - 1, mask=~present)
        fields = [f.take(places) for f in fields]
    return as_struct(fields, pa.array(~present), type.arrow)


def _lengths(counts: list[int], present: Any) -> pa.Array:
    """The same for every row, NULL where nothing is."""
    whole = np.zeros(len(present), np.int64)
    whole[present] = counts
    return pa.array(whole, mask=~present)
