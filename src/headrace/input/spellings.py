"""How a value is spelled in a CSV field, for every type a column can have.

pyarrow's CSV converter takes the usual spellings at full speed. Where it refuses
a block of rows, the block is converted here instead: a little wider (``+7``,
``1.2300`` for a decimal(5,2), blanks around a boolean, zoned and local
timestamps in one column) and able to say *which* row is wrong. What is accepted
here has the same value as what is accepted there, so a row means the same
whatever its neighbours are.

>>> read(pa.array(["+7", None, " 8"]), INT, "UTC").to_pylist()
[7, None, 8]
>>> first_unreadable(pa.array(["1.10", "1.1000", "1.101"]), decimal(5, 2), "UTC")
2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.types import INT, Type, decimal

__all__ = ["EXPECTED", "INT", "decimal", "first_failure", "first_unreadable", "has_offset", "in_zone", "read", "unhex"]

_BLANK = " \t"
_OFFSET = r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)$"
_NIBBLE = np.full(256, 255, dtype=np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _NIBBLE[_digit] = _NIBBLE[ord(chr(_digit).upper())] = _value


EXPECTED = {
    "boolean": "write true or false",
    "tinyint": "write a whole number from -128 to 127",
    "smallint": "write a whole number from -32768 to 32767",
    "int": "write a whole number from -2147483648 to 2147483647",
    "bigint": "write a whole number from -9223372036854775808 to 9223372036854775807",
    "decimal": "write a number with no more digits than the type holds; COPY does not round",
    "float": "write a number, NaN, Infinity or -Infinity",
    "double": "write a number, NaN, Infinity or -Infinity",
    "binary": "write pairs of hexadecimal digits",
    "date": "write it as 2024-12-31",
    "timestamp": "write it as 2024-12-31 23:59:59.999999, with or without an offset such as Z or +01:00",
    "timestamp_ntz": "write it as 2024-12-31 23:59:59.999999, without an offset",
}
"""What to write instead, by type."""


def read(text: pa.Array, type: Type, zone: str) -> pa.Array:
    """The values a column of text (or of its bytes) spells.

    ``pa.ArrowInvalid`` if one is no spelling of ``type`` or not UTF-8.
    """
    if not pa.types.is_string(text.type):
        text = text.cast(pa.string())  # refuses what is not UTF-8
    if type.name == "string":
        return text
    if type.name == "binary":
        return unhex(text)
    text = pc.utf8_trim(text, _BLANK)
    if type.is_integer:
        text = pc.replace_substring_regex(text, r"^\+(\d)", r"\1")
    elif type.is_decimal:
        # trailing zeros of the fraction are no digits of the value
        text = pc.replace_substring_regex(text, r"^([^.]*\.\d*?)0+$", r"\1")
    elif type.is_timestamp:
        text = pc.replace_substring_regex(text, r"(\.\d{6})0+", r"\1")
        if type.name == "timestamp":
            return _timestamps(text, zone)
    values = pc.cast(text, type.arrow)
    if type.is_decimal:
        values.validate(full=True)  # the cast lets 1000 into a decimal(5,2)
    return values


def _timestamps(text: pa.Array, zone: str) -> pa.Array:
    """Instants: text with an offset says which; text without one is a local time of ``zone``."""
    text = pc.replace_substring_regex(text, " +(" + _OFFSET + ")", r"\1")
    zoned = _zoned(text)
    nothing = pa.scalar(None, pa.string())
    instants = pc.cast(pc.if_else(zoned, text, nothing), pa.timestamp("us", tz="UTC"))
    locals_ = pc.cast(pc.if_else(zoned, nothing, text), pa.timestamp("us"))
    return pc.coalesce(instants, in_zone(locals_, zone))


def has_offset(text: pa.Array) -> bool:
    """Whether all these timestamps say their offset from UTC (and there are any).

    >>> has_offset(pa.array(["2020-01-02 03:04:05Z"])), has_offset(pa.array(["2020-01-02"]))
    (True, False)
    """
    return bool(len(text)) and bool(pc.all(_zoned(text)).as_py())


def _zoned(text: pa.Array) -> pa.Array:
    # a date's own "-02" is no offset: an offset follows a time
    return pc.fill_null(pc.match_substring_regex(text, r"\d\d[T ]\d\d.*" + _OFFSET), False)


def in_zone(local: pa.Array, zone: str) -> pa.Array:
    """Local times of ``zone`` as instants.

    As in Spark, the earlier instant where clocks are set back makes two of them;
    ``pa.ArrowInvalid`` for a time that clocks set forward skip, for there is none.
    """
    return pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="raise").cast(pa.timestamp("us", tz="UTC"))


def unhex(text: pa.Array) -> pa.Array:
    """Bytes from pairs of hexadecimal digits.

    >>> unhex(pa.array(["00ff", None, ""])).to_pylist()
    [b'\\x00\\xff', None, b'']
    """
    text = pa.concat_arrays([text.cast(pa.binary())])  # no offset, no bytes of other rows
    lengths = pc.fill_null(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
    packed = pc.fill_null(text, b"").buffers()[2]
    digits = np.frombuffer(packed or b"", dtype=np.uint8)[: int(lengths.sum())]
    nibbles = _NIBBLE[digits]
    if (lengths % 2).any() or (nibbles == 255).any():
        raise pa.ArrowInvalid("not pairs of hexadecimal digits")
    data = (nibbles[0::2] << 4) | nibbles[1::2]
    offsets = np.concatenate(([0], np.cumsum(lengths // 2))).astype(np.int32)
    validity = pc.is_valid(text).buffers()[1] if text.null_count else None
    return pa.Array.from_buffers(
        pa.binary(), len(text), [validity, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())], text.null_count
    )


def first_unreadable(text: pa.Array, type: Type, zone: str) -> int | None:
    """The index of the first value that is no spelling of ``type``."""
    return first_failure(lambda part: read(part, type, zone), text)


def first_failure(convert: Callable[[Any], object], values: Any) -> int | None:
    """The index of the first value ``convert`` refuses, by bisection; ``None`` if it takes them all.

    >>> first_failure(lambda part: pc.cast(part, "int8"), pa.array([1, 500, 2, 600]))
    1
    """
    if _accepts(convert, values):
        return None
    good, bad = 0, len(values)  # values[:good] are accepted, values[:bad] are not
    while bad - good > 1:
        middle = (good + bad) // 2
        if _accepts(convert, values[good:middle]):
            good = middle
        else:
            bad = middle
    return good


def _accepts(convert: Callable[[Any], object], values: Any) -> bool:
    try:
        convert(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return False
    return True
