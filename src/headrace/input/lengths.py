"""Text as columns of VARCHAR(n) and CHAR(n) hold it: Spark's check of what is written.

Text may have ``n`` characters. Spaces at its end that are too much are cut off; text that
is longer still is refused. CHAR fills shorter text up with spaces. A NULL stays one.
Text in files that are only read is as long as it is there (:attr:`headrace.types.Type.as_read`).

>>> from headrace.types import parse_type
>>> fitted(pa.array(["ab  ", "abc", None]), parse_type("varchar(3)")).to_pylist()
['ab ', 'abc', None]
>>> fitted(pa.array([["a"], []]), parse_type("array<char(3)>")).to_pylist()
[['a  '], []]
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DataError
from headrace.input.nested import as_list, as_map, as_struct, map_apart, taken_apart
from headrace.input.spellings import first_failure
from headrace.input.text import shorten
from headrace.types import Field, Limit, Type

CONDITION = "EXCEED_LIMIT_LENGTH"
HINT = "shorten it, or declare the column with a greater length or as STRING"


class TooLong(ValueError):
    """Text that is longer than its column takes."""


def fitted(array: pa.Array, type: Type) -> pa.Array:
    """The values as a column of this type holds them; :class:`TooLong` if one has no place in it."""
    if not type.is_limited:
        return array
    if type.limit is not None:
        return _text(array, type.limit)
    if type.name == "array":
        lengths, elements = taken_apart(array)
        return as_list(lengths, fitted(elements, type.element), type.arrow)
    if type.name == "map":
        lengths, keys, values = map_apart(array)
        key, value = (part.type for part in type.parts)
        return as_map(lengths, fitted(keys, key), fitted(values, value), type.arrow)
    fields = [fitted(child, part.type) for child, part in zip(array.flatten(), type.parts, strict=True)]
    return as_struct(fields, array.is_null(), type.arrow)


def _text(array: pa.Array, limit: Limit) -> pa.Array:
    found = pc.utf8_length(array)
    bounds = pc.min_max(found).as_py()
    if limit.checked and bounds["max"] is not None and bounds["max"] > limit.length:
        if pc.max(pc.utf8_length(pc.utf8_rtrim(array, " "))).as_py() > limit.length:
            raise TooLong
        array = pc.if_else(pc.greater(found, limit.length), pc.utf8_slice_codeunits(array, 0, limit.length), array)
    if limit.fixed and bounds["min"] is not None and bounds["min"] < limit.length:
        array = pc.utf8_rpad(array, limit.length, " ")
    return array


def first_too_long(array: pa.Array, f: Field) -> tuple[int, str]:
    """Of values :func:`fitted` refuses: the index of the first, and what to say of it."""
    index = first_failure(lambda part: fitted(part, f.type), array) or 0
    return index, f"column {f.name}: {shorten(repr(array[index].as_py()))} is too long for {f.type.declared}"


def too_long(where: str, what: str) -> DataError:
    return DataError(CONDITION, f"{where}{what}", hint=HINT)
