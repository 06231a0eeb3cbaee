# mypy: disable-error-code="no-untyped-call, call-arg, var-annotated"
"""A compiled reader for the plain case of CSV: one pass over the bytes, only the wanted columns.

A general CSV parser copies every field of every row before it converts the few
that are wanted. Most files need none of that: this kernel walks the bytes once,
skips runs of fields nobody asked for by counting delimiters a block at a time,
and writes integers, decimals, dates and text straight into column buffers.

It *declines* whatever is not plain (a doubled quote, an odd spelling, a line end
that is not ``\\n``, a wrong field count, a value out of range): the block is then
read by the general reader, which has the whole dialect and names the error. So a
block has one meaning, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from headrace.stream.words import BLOCK, WIDE, copy_wide, count_bits, lowest_bit, matches
from headrace.types import Field

_SKIP, _INT, _DECIMAL, _DATE, _TEXT = range(5)
_KINDS = {"tinyint": _INT, "smallint": _INT, "int": _INT, "bigint": _INT, "date": _DATE, "string": _TEXT}
_LF, _CR = 10, 13
_ORDINARY, _DELIMITER, _NEWLINE, _RETURN = range(4)
_DIGITS = 18
"""As many decimal digits as a 64-bit integer always holds."""


class Kernel:
    """Reads blocks of one file layout; ``None`` from :meth:`read` means "declined"."""

    def __init__(self, names: Sequence[str], wanted: Sequence[Field], delimiter: str, quote: str) -> None:
        by_name = {f.name: f for f in wanted}
        self.wanted = wanted
        self.kinds = np.array([_kind(by_name[n]) if n in by_name else _SKIP for n in names], np.int64)
        self.runs = _runs(self.kinds)
        # Where each field of a row goes: columns come out in the wanted order, not the file's.
        order = {f.name: i for i, f in enumerate(wanted)}
        self.slots = np.array([order.get(n, 0) for n in names], np.int64)
        self.scales = np.array([f.type.scale for f in wanted], np.int64)
        self.limits = np.array([_limit(f) for f in wanted], np.int64)
        self.classes = np.zeros(256, np.uint8)
        self.classes[ord(delimiter)] = _DELIMITER
        self.classes[_LF] = _NEWLINE
        self.classes[_CR] = _RETURN
        self.delimiter = ord(delimiter)
        self._size = 0
        self._rooms: tuple[Any, Any, Any, Any] = (None, None, None, None)
        self.quote = ord(quote) if quote else -1

    @staticmethod
    def fits(wanted: Sequence[Field], null: str) -> bool:
        """Whether all wanted columns have types the kernel reads, and NULL is spelled plainly."""
        plain = all(f.type.name in _KINDS or (f.type.is_decimal and f.type.precision <= _DIGITS) for f in wanted)
        return plain and bool(wanted) and null == ""

    def read(self, data: np.ndarray[Any, np.dtype[np.uint8]], start: int, end: int) -> list[pa.Array] | None:
        """The wanted columns of the records in ``[start, end)``."""
        if data[end - 1] != _LF:
            return None
        values, valid, offsets, chars = self._room(end - start)
        rows = _scan(
            data, start, end, self.kinds, self.runs, self.slots, self.scales, self.limits, self.classes, self.delimiter,
            self.quote, values, valid, offsets, chars,
        )  # fmt: skip
        if rows < 0:
            return None
        arrays = [self._array(f, i, rows, values, valid, offsets, chars) for i, f in enumerate(self.wanted)]
        if not all(_is_utf8(a) for f, a in zip(self.wanted, arrays, strict=True) if f.type.name == "string"):
            return None
        if any(not f.nullable and a.null_count for f, a in zip(self.wanted, arrays, strict=True)):
            return None
        return arrays

    def _room(self, size: int) -> tuple[Any, Any, Any, Any]:
        """Where a block of so many bytes is read to, the same for all blocks: values are copied out of it."""
        if size > self._size:
            most, columns = size // len(self.kinds) + 1, len(self.wanted)
            text = any(f.type.name == "string" for f in self.wanted)
            self._rooms = (
                np.empty((columns, most), np.int64),
                np.empty((columns, most), np.uint8),
                np.empty((columns, most + 1 if text else 1), np.int32),
                np.empty((columns, size + WIDE if text else 1), np.uint8),
            )
            self._size = size
        return self._rooms

    def _array(self, f: Field, i: int, rows: int, values: Any, valid: Any, offsets: Any, chars: Any) -> pa.Array:
        present = valid[i, :rows]
        mask = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        if f.type.name == "string":
            ends = offsets[i, : rows + 1]
            text = chars[i, : ends[-1]]
            return pa.Array.from_buffers(pa.string(), rows, [mask, _buffer(ends, np.int32), _buffer(text, np.uint8)])
        column = values[i, :rows]
        if f.type.is_decimal:
            wide = pa.allocate_buffer(16 * rows)
            words = np.frombuffer(wide, np.int64).reshape(rows, 2)
            words[:, 0] = column
            np.right_shift(column, 63, out=words[:, 1])
            return pa.Array.from_buffers(f.type.arrow, rows, [mask, wide])
        dtype = np.dtype(f.type.arrow.to_pandas_dtype() if f.type.name != "date" else np.int32)
        return pa.Array.from_buffers(f.type.arrow, rows, [mask, _buffer(column, dtype)])


def _buffer(values: Any, dtype: Any) -> pa.Buffer:
    """The values in Arrow's memory, which is used again: fresh pages would cost more than the copying."""
    buffer = pa.allocate_buffer(len(values) * np.dtype(dtype).itemsize)
    if len(values):
        np.frombuffer(buffer, dtype)[:] = values
    return buffer


def _runs(kinds: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many fields nobody wants begin with each field.

    >>> _runs(np.array([_SKIP, _SKIP, _INT, _SKIP])).tolist()
    [2, 1, 0, 1]
    """
    found = np.zeros(len(kinds) + 1, np.int64)
    for c in reversed(range(len(kinds))):
        found[c] = found[c + 1] + 1 if kinds[c] == _SKIP else 0
    return found[:-1]


def _kind(f: Field) -> int:
    return _DECIMAL if f.type.is_decimal else _KINDS[f.type.name]


def _limit(f: Field) -> int:
    """The largest magnitude a value may have."""
    if f.type.is_decimal:
        return int(10**f.type.precision) - 1
    bits = {"tinyint": 7, "smallint": 15, "int": 31}.get(f.type.name)
    return (1 << bits) - 1 if bits else int(10**_DIGITS) - 1


def _is_utf8(array: pa.Array) -> bool:
    text = array.buffers()[2]
    if not text.size or np.frombuffer(text, np.uint8).max() < 128:
        return True
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@njit(cache=True, nogil=True)
def _past(data: Any, pos: int, end: int, fields: int, is_last: bool, delimiter: int, quote: int) -> int:
    """Where the delimiter after so many fields is, or the line end if a record's last is one of them.

    -1 if something is in the way that wants a closer look: a quote, a line end too early or too late, the block's end.
    """
    delimiters = fields - 1 if is_last else fields
    while pos + BLOCK <= end:
        found = matches(data, pos, np.uint8(delimiter))
        stops = matches(data, pos, np.uint8(_LF)) | matches(data, pos, np.uint8(_CR))
        if quote >= 0:
            stops |= matches(data, pos, np.uint8(quote))
        if stops:
            found &= (np.uint32(1) << lowest_bit(stops)) - np.uint32(1)
        passed = np.int64(count_bits(found))
        if not is_last and passed >= delimiters:
            for _ in range(delimiters - 1):
                found &= found - np.uint32(1)
            return pos + np.int64(lowest_bit(found))
        if stops:
            at = pos + np.int64(lowest_bit(stops))
            return at if is_last and passed == delimiters and data[at] == _LF else -1
        delimiters -= passed
        pos += BLOCK
    return -1


@njit(cache=True, nogil=True)
def _field_end(data: Any, pos: int, classes: Any, delimiter: int) -> int:
    """Where a field without quotes ends: a line end is always there."""
    while pos + BLOCK <= len(data):
        stops = matches(data, pos, np.uint8(delimiter)) | matches(data, pos, np.uint8(_LF))
        stops |= matches(data, pos, np.uint8(_CR))
        if stops:
            return pos + np.int64(lowest_bit(stops))
        pos += BLOCK
    while classes[data[pos]] == _ORDINARY:
        pos += 1
    return pos


@njit(cache=True, nogil=True)
def _scan(
    data: Any, pos: int, end: int, kinds: Any, runs: Any, slots: Any, scales: Any, limits: Any, classes: Any,
    delimiter: int, quote: int, values: Any, valid: Any, offsets: Any, chars: Any,
) -> int:  # fmt: skip
    """Rows read; -1 if the block is declined."""
    width = len(kinds)
    row = 0
    stride = chars.shape[1]
    flat = chars.reshape(-1)
    for c in range(width):
        if kinds[c] == _TEXT:
            offsets[slots[c], 0] = 0
    while pos < end:
        c = -1
        while c < width - 1:
            c += 1
            if runs[c]:
                past = _past(data, pos, end, runs[c], c + runs[c] == width, delimiter, quote)
                if past >= 0:
                    c += runs[c] - 1
                    pos = past + 1
                    continue
            kind = kinds[c]
            slot = slots[c]
            closing = _NEWLINE if c == width - 1 else _DELIMITER
            quoted = data[pos] == quote
            if quoted:
                pos += 1
            first = pos
            if kind in (_SKIP, _TEXT):
                if quoted:
                    while pos < end and data[pos] != quote:
                        pos += 1
                else:
                    pos = _field_end(data, pos, classes, delimiter)
                if kind == _TEXT:
                    size = pos - first
                    at = offsets[slot, row]
                    to = slot * stride + at
                    done = 0
                    if first + WIDE <= len(data):
                        copy_wide(data, first, flat, to)
                        done = WIDE
                    for i in range(done, size):
                        flat[to + i] = data[first + i]
                    offsets[slot, row + 1] = at + size
                    valid[slot, row] = 1 if quoted or size > 0 else 0
            elif kind == _DATE:
                if classes[data[pos]] == closing and not quoted:
                    valid[slot, row] = 0
                    values[slot, row] = 0
                else:
                    if pos + 10 >= end or data[pos + 4] != 45 or data[pos + 7] != 45:
                        return -1
                    for i in (0, 1, 2, 3, 5, 6, 8, 9):
                        if data[pos + i] < 48 or data[pos + i] > 57:
                            return -1
                    year = (
                        np.int64(data[pos] - 48) * 1000 + np.int64(data[pos + 1] - 48) * 100
                        + np.int64(data[pos + 2] - 48) * 10 + np.int64(data[pos + 3] - 48)
                    )  # fmt: skip
                    month = np.int64(data[pos + 5] - 48) * 10 + np.int64(data[pos + 6] - 48)
                    day = np.int64(data[pos + 8] - 48) * 10 + np.int64(data[pos + 9] - 48)
                    if year < 1 or month < 1 or month > 12 or day < 1 or day > 28:
                        if year < 1 or month < 1 or month > 12 or day < 1:
                            return -1
                        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
                        last = 30 if month in (4, 6, 9, 11) else (29 if leap else 28) if month == 2 else 31
                        if day > last:
                            return -1
                    # Days from 1970-01-01: years counted from March, so that the leap day is the last.
                    y = year - 1 if month <= 2 else year
                    era = y // 400
                    of_era = y - era * 400
                    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
                    values[slot, row] = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
                    valid[slot, row] = 1
                    pos += 10
            else:
                if classes[data[pos]] == closing and not quoted:
                    valid[slot, row] = 0
                    values[slot, row] = 0
                else:
                    negative = data[pos] == 45
                    if negative:
                        pos += 1
                    value = np.int64(0)
                    digits = 0
                    fraction = -1
                    while pos < end:
                        byte = data[pos]
                        if 48 <= byte <= 57:
                            value = value * 10 + np.int64(byte - 48)
                            digits += 1
                            if fraction >= 0:
                                fraction += 1
                        elif byte == 46 and fraction < 0 and kind == _DECIMAL and digits > 0:
                            fraction = 0
                        else:
                            break
                        pos += 1
                    if digits == 0 or fraction == 0:
                        return -1
                    if kind == _DECIMAL:
                        missing = scales[slot] - max(fraction, 0)
                        if missing < 0 or digits + missing > _DIGITS:
                            return -1
                        for _ in range(missing):
                            value *= 10
                    elif digits > _DIGITS:
                        return -1
                    if value > limits[slot]:
                        return -1
                    values[slot, row] = -value if negative else value
                    valid[slot, row] = 1
            if quoted:
                if pos >= end or data[pos] != quote:
                    return -1
                pos += 1
            if pos >= end or classes[data[pos]] != closing:
                return -1
            pos += 1
        row += 1
    return row
