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

from headrace.input.words import (
    BLOCK,
    WIDE,
    byte,
    copy_wide,
    count_bits,
    leading_digits,
    leading_zeros,
    lowest_bit,
    matches,
    number,
    put_byte,
    put_word,
    word,
)
from headrace.types import Field

_SKIP, _INT, _DECIMAL, _DATE, _TEXT = range(5)
_KINDS = {"tinyint": _INT, "smallint": _INT, "int": _INT, "bigint": _INT, "date": _DATE, "string": _TEXT}
_LF, _CR = 10, 13
_DIGITS = 18
"""As many decimal digits as a 64-bit integer always holds."""
_POWERS = 10 ** np.arange(_DIGITS + 1, dtype=np.int64)
_MONTHS = np.arange(np.datetime64("0000-01"), np.datetime64("10000-02")).astype("M8[D]").astype(np.int64)
"""The day each month of the years 0 to 9999 begins with, counted from 1970-01-01, and that after the last."""


class CsvKernel:
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
        nulls = np.zeros(len(self.wanted), np.int64)
        rows = _scan(
            data, start, end, self.kinds, self.runs, self.slots, self.scales, self.limits, self.delimiter,
            self.quote, _MONTHS, values, valid, nulls, offsets, chars,
        )  # fmt: skip
        if rows < 0 or any(n and not f.nullable for f, n in zip(self.wanted, nulls.tolist(), strict=True)):
            return None
        arrays = []
        for i, f in enumerate(self.wanted):
            mask = pa.py_buffer(np.packbits(valid[i, :rows], bitorder="little")) if nulls[i] else None
            if f.type.name == "string":
                ends = offsets[i, : rows + 1]
                buffers = [mask, _copied(ends, 4), _copied(chars[i, : ends[-1]], 1)]
            elif f.type.is_decimal:
                buffers = [mask, _widened(values[i, :rows])]
            else:
                buffers = [mask, _copied(values[i, :rows], f.type.arrow.bit_width // 8)]
            arrays.append(pa.Array.from_buffers(f.type.arrow, rows, buffers, int(nulls[i])))
            if f.type.name == "string" and not _is_utf8(arrays[-1]):
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


# What leaves the kernel is copied into Arrow's memory, which is used again: fresh pages would cost more than that.


def _copied(values: Any, width: int) -> pa.Buffer:
    """The values, so many bytes wide: text's bytes and ends, integers, dates."""
    buffer = pa.allocate_buffer(len(values) * width)
    if len(values):
        np.frombuffer(buffer, f"i{width}")[:] = values
    return buffer


def _widened(values: Any) -> pa.Buffer:
    """The values in 16 bytes each, as decimals are."""
    buffer = pa.allocate_buffer(len(values) * 16)
    _put_wide(values, buffer.address)
    return buffer


@njit(cache=True, nogil=True)
def _put_wide(values: Any, to: int) -> None:
    for row in range(len(values)):
        put_word(to + 16 * row, np.uint64(values[row]))
        put_word(to + 16 * row + 8, np.uint64(values[row] >> 63))


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


# Below, places in the text are addresses; a block ends with a line end.


@njit(cache=True, nogil=True)
def _pass(pos: int, end: int, fields: int, is_last: bool, delimiter: int, quote: int) -> tuple[int, int]:
    """Pass over so many fields, a record's last among them or not: how many were passed, and where the next begins.

    They are fewer where something wants a closer look: a quote, a line end too early or too late, the block's end.
    """
    inner = fields - 1 if is_last else fields
    passed, begin = 0, pos
    while pos + BLOCK <= end:
        found = matches(pos, np.uint8(delimiter))
        stops = matches(pos, np.uint8(_LF)) | matches(pos, np.uint8(_CR))
        if quote >= 0:
            stops |= matches(pos, np.uint8(quote))
        if stops:
            found &= (np.uint32(1) << lowest_bit(stops)) - np.uint32(1)
        count = np.int64(count_bits(found))
        if passed + count >= inner and (not is_last or passed + count > inner):
            for _ in range(inner - passed - 1):
                found &= found - np.uint32(1)
            return inner, (pos + np.int64(lowest_bit(found)) + 1 if inner > passed else begin)
        if count:
            begin = pos + BLOCK - np.int64(leading_zeros(found))
            passed += count
        if stops:
            at = pos + np.int64(lowest_bit(stops))
            if is_last and passed == inner and byte(at) == _LF:
                return fields, at + 1
            return passed, begin
        pos += BLOCK
    return passed, begin


@njit(cache=True, nogil=True)
def _field_end(pos: int, end: int, delimiter: int) -> int:
    """Where a field without quotes ends."""
    while pos + BLOCK <= end:
        stops = matches(pos, np.uint8(delimiter)) | matches(pos, np.uint8(_LF)) | matches(pos, np.uint8(_CR))
        if stops:
            return pos + np.int64(lowest_bit(stops))
        pos += BLOCK
    while byte(pos) != delimiter and byte(pos) != _LF and byte(pos) != _CR:
        pos += 1
    return pos


@njit(cache=True, nogil=True)
def _closing_quote(pos: int, end: int, quote: int) -> int:
    """Where the next quote is; the block's end if there is none."""
    while pos + BLOCK <= end:
        found = matches(pos, np.uint8(quote))
        if found:
            return pos + np.int64(lowest_bit(found))
        pos += BLOCK
    while pos < end and byte(pos) != quote:
        pos += 1
    return pos


@njit(cache=True, nogil=True)
def _digits(pos: int, end: int, value: int) -> tuple[int, int]:
    """What the digits from here on, if any, make of ``value``, and where they end."""
    while pos + 8 <= end:
        text = word(pos)
        count = leading_digits(text)
        if count:
            value = value * _POWERS[count] + number(text, count)
        pos += count
        if count < 8:
            return value, pos
    while 48 <= byte(pos) <= 57:
        value = value * 10 + np.int64(byte(pos) - 48)
        pos += 1
    return value, pos


@njit(cache=True, nogil=True)
def _date(pos: int) -> tuple[int, int]:
    """The month that ``yyyy-mm-dd`` is in, counted from the year 0, and the day; 0 if it is spelled otherwise."""
    text, day = word(pos), word(pos + 2)
    # With the hyphens made zeros, all of it is digits.
    text, day = text ^ np.uint64(0x1D00001D00000000), day ^ np.uint64(0x00001D00001D0000)
    hyphens = text & np.uint64(0xFF0000FF00000000)
    if leading_digits(text) < 8 or leading_digits(day) < 8 or hyphens != np.uint64(0x3000003000000000):
        return 0, 0
    year, month = number(text, 4), number(text >> np.uint64(40), 2)
    if year < 1 or month < 1 or month > 12:
        return 0, 0
    return year * 12 + month - 1, number(day >> np.uint64(48), 2)


@njit(cache=True, nogil=True)
def _scan(
    data: Any, start: int, stop: int, kinds: Any, runs: Any, slots: Any, scales: Any, limits: Any, delimiter: int,
    quote: int, months: Any, values: Any, valid: Any, nulls: Any,
    offsets: Any, chars: Any,
) -> int:  # fmt: skip
    """Rows read; -1 if the block is declined."""
    pos, end, top = data.ctypes.data + start, data.ctypes.data + stop, data.ctypes.data + len(data)
    width = len(kinds)
    row = 0
    room, stride = chars.ctypes.data, chars.shape[1]
    for c in range(width):
        if kinds[c] == _TEXT:
            offsets[slots[c], 0] = 0
    while pos < end:
        c = -1
        while c < width - 1:
            c += 1
            if runs[c]:
                passed, pos = _pass(pos, end, runs[c], c + runs[c] == width, delimiter, quote)
                if passed == runs[c]:
                    c += passed - 1
                    continue
                c += passed
            kind = kinds[c]
            slot = slots[c]
            closing = _LF if c == width - 1 else delimiter
            quoted = byte(pos) == quote
            if quoted:
                pos += 1
            first = pos
            if kind in (_SKIP, _TEXT):
                pos = _closing_quote(pos, end, quote) if quoted else _field_end(pos, end, delimiter)
                if kind == _TEXT:
                    size = pos - first
                    at = offsets[slot, row]
                    to = room + slot * stride + at
                    if pos + WIDE <= top:
                        for done in range(0, size, WIDE):
                            copy_wide(first + done, to + done)
                    else:
                        for done in range(size):
                            put_byte(to + done, byte(first + done))
                    offsets[slot, row + 1] = at + size
                    present = quoted or size > 0
                    valid[slot, row] = present
                    nulls[slot] += not present
            elif byte(pos) == closing and not quoted:
                valid[slot, row] = 0
                values[slot, row] = 0
                nulls[slot] += 1
            elif kind == _DATE:
                if pos + 10 >= end:
                    return -1
                month, day = _date(pos)
                if day < 1 or day > months[month + 1] - months[month]:
                    return -1
                values[slot, row] = months[month] + day - 1
                valid[slot, row] = 1
                pos += 10
            else:
                negative = byte(pos) == 45
                if negative:
                    pos += 1
                begin = pos
                value, pos = _digits(pos, end, 0)
                digits = pos - begin
                if digits == 0:
                    return -1
                if kind == _DECIMAL:
                    missing = scales[slot]
                    if byte(pos) == 46:
                        begin = pos + 1
                        value, pos = _digits(begin, end, value)
                        if pos == begin:
                            return -1
                        digits += pos - begin
                        missing -= pos - begin
                    if missing < 0 or digits + missing > _DIGITS:
                        return -1
                    value *= _POWERS[missing]
                elif digits > _DIGITS:
                    return -1
                if value > limits[slot]:
                    return -1
                values[slot, row] = -value if negative else value
                valid[slot, row] = 1
            if quoted:
                if pos >= end or byte(pos) != quote:
                    return -1
                pos += 1
            if pos >= end or byte(pos) != closing:
                return -1
            pos += 1
        row += 1
    return row
