"""Text is UTF-8, checked where it comes in: once it is in a state, every read of that state would fail on it.

Arrow only promises that its text is UTF-8, and Spark's strings are any bytes: ``CAST(X'fffe' AS STRING)``, or the value
of a Kafka record cast so. Whoever takes rows from either looks here first. A look costs about 5 µs per thousand rows.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from headrace.errors import DataError, HeadraceError

INVALID = "INVALID_UTF8_STRING"
"""As Spark calls it."""
HINT = (
    "keep such bytes in a BINARY column, or make text of them: in Spark SQL make_valid_utf8(x) replaces what is "
    "no UTF-8, try_validate_utf8(x) is NULL for it"
)


@lru_cache(maxsize=1024)
def holds_text(type: pa.DataType) -> bool:
    """Whether there is text in values of an Arrow type.

    >>> holds_text(pa.list_(pa.struct([("a", pa.string())]))), holds_text(pa.binary())
    (True, False)
    """
    t = pa.types
    if t.is_dictionary(type):
        return holds_text(type.value_type)
    if t.is_nested(type):
        return any(holds_text(type.field(i).type) for i in range(type.num_fields))
    return bool(t.is_string(type) or t.is_large_string(type) or t.is_string_view(type))


def check_text(array: pa.Array) -> None:
    """Arrow's error if some text of the array is no UTF-8."""
    t = pa.types
    if not holds_text(array.type):
        return
    if t.is_struct(array.type):
        for child in array.flatten():
            check_text(child)
    elif t.is_list(array.type) or t.is_large_list(array.type) or t.is_fixed_size_list(array.type):
        check_text(array.flatten())  # of these rows alone: an array may be a part of a longer one
    else:
        array.validate(full=True)


def first_bad_text(array: pa.Array) -> int | None:
    """The first row with text that is no UTF-8; ``None`` if there is none.

    >>> first_bad_text(pa.array(["a", "b"]))
    """
    if _is_valid(array):
        return None
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _is_valid(array[good:middle]) else (good, middle)
    return good


def refuse_bad_text(rows: pa.Table | pa.RecordBatch, kind: type[HeadraceError] = DataError) -> None:
    """An error of this kind that names the first such column and row."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not holds_text(column.type):
            continue
        before = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if (bad := first_bad_text(chunk)) is not None:
                raise kind(INVALID, f"row {before + bad + 1}, column {name}: the text is not UTF-8", hint=HINT)
            before += len(chunk)


def _is_valid(array: pa.Array) -> bool:
    try:
        check_text(array)
    except pa.ArrowInvalid:
        return False
    return True
