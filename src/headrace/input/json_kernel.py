"""A compiled locator for JSON lines: one pass over the bytes, only the wanted fields copied.

It gives exactly what :class:`headrace.input.json_scan.Scanner` gives, for lines
it takes. It *declines* a block that holds anything wrong or odd (an escaped field
name, nesting past 60 levels, half a surrogate pair): the scanner then reads it,
and names the error. So a block has one meaning, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from headrace.input.json_scan import BOOLEAN, MISSING, NESTED, NUMBER, STRING, WORD, Located
from headrace.input.records import NEWLINE, Bytes

_ESCAPED = 6
"""A string with escapes; a STRING once they are taken out."""
_DEEPEST = 60

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _ZERO, _NINE = 34, 92, 44, 58, 45, 48, 57
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_VALUE, _FIRST_VALUE, _NAME, _FIRST_NAME, _AFTER = range(5)


class JsonKernel:
    """Locates the values of some columns, all of whose relation's names are ASCII."""

    def __init__(self, names: Sequence[str]) -> None:
        lower = [name.lower().encode() for name in names]
        self._names = np.frombuffer(b"".join(lower) or b" ", np.uint8)
        self._offsets = np.cumsum([0, *map(len, lower)])

    def locate(self, data: Bytes, start: int, end: int) -> tuple[int, list[Located]] | None:
        """The rows of the lines in ``[start, end)``, or ``None`` if the scanner must read them."""
        width = len(self._offsets) - 1
        most = int(np.count_nonzero(data[start:end] == NEWLINE)) + 1
        starts = np.empty((width, most), np.int64)
        ends = np.empty((width, most), np.int64)
        kinds = np.empty((width, most), np.uint8)
        if not _is_utf8(data[start:end]):
            return None
        rows = _scan(data, start, end, self._names, self._offsets, starts, ends, kinds)
        if rows < 0:
            return None
        columns = []
        for i in range(width):
            column = _gathered(data, starts[i, :rows], ends[i, :rows], kinds[i, :rows])
            if column is None:
                return None
            columns.append(column)
        return rows, columns


def _gathered(data: Bytes, starts: Any, ends: Any, kinds: Any) -> Located | None:
    rows = len(kinds)
    present = kinds != MISSING
    offsets = np.empty(rows + 1, np.int32)
    text = np.empty(int((ends - starts)[present].sum()), np.uint8)
    used = _gather(data, starts, ends, kinds, offsets, text)
    if used < 0:
        return None
    mask = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    array = pa.Array.from_buffers(pa.string(), rows, [mask, pa.py_buffer(offsets), pa.py_buffer(text[:used])])
    return Located(np.where(kinds == _ESCAPED, np.uint8(STRING), kinds), array)


def _is_utf8(data: Bytes) -> bool:
    whole = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(np.array([0, len(data)], np.int64)), pa.py_buffer(data)]
    )
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@njit(cache=True, nogil=True)
def _skip(data: Any, pos: int, end: int) -> int:
    while pos < end and (data[pos] == 32 or data[pos] == 9 or data[pos] == 13):
        pos += 1
    return pos


@njit(cache=True, nogil=True)
def _hex(data: Any, pos: int) -> Any:
    """Four hexadecimal digits as a number, -1 if they are none."""
    value = np.int64(0)
    for i in range(pos, pos + 4):
        c = data[i]
        if 48 <= c <= 57:
            digit = c - 48
        elif 97 <= c <= 102:
            digit = c - 87
        elif 65 <= c <= 70:
            digit = c - 55
        else:
            return -1
        value = value * 16 + np.int64(digit)
    return value


@njit(cache=True, nogil=True)
def _string(data: Any, pos: int, end: int) -> tuple[int, int]:
    """Past the string whose first character is at ``pos``, and its kind; -1 if it is none."""
    kind = STRING
    while pos < end:
        c = data[pos]
        if c == _QUOTE:
            return pos + 1, kind
        if c < 32:
            return -1, 0
        if c == _BACKSLASH:
            kind = _ESCAPED
            pos += 1
            if pos >= end:
                return -1, 0
            c = data[pos]
            if c == 117:
                if pos + 5 > end or _hex(data, pos + 1) < 0:
                    return -1, 0
                pos += 4
            elif not (c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116):
                return -1, 0
        pos += 1
    return -1, 0


@njit(cache=True, nogil=True)
def _digits(data: Any, pos: int, end: int) -> int:
    """Past one or more digits, -1 if there is none."""
    first = pos
    while pos < end and _ZERO <= data[pos] <= _NINE:
        pos += 1
    return pos if pos > first else -1


@njit(cache=True, nogil=True)
def _word(data: Any, pos: int, end: int, word: bytes) -> int:
    """Past ``word``, -1 if it does not stand here."""
    if pos + len(word) > end:
        return -1
    for i in range(len(word)):
        if data[pos + i] != word[i]:
            return -1
    return pos + len(word)


@njit(cache=True, nogil=True)
def _plain(data: Any, pos: int, end: int) -> tuple[int, int]:
    """Past the value at ``pos``, and its kind, for anything but an object or a list; -1 if it is none."""
    if pos >= end:
        return -1, 0
    c = data[pos]
    if c == _QUOTE:
        return _string(data, pos + 1, end)
    if c == 116:
        return _word(data, pos, end, b"true"), BOOLEAN
    if c == 102:
        return _word(data, pos, end, b"false"), BOOLEAN
    if c == 110:
        return _word(data, pos, end, b"null"), MISSING
    if c == 78:
        return _word(data, pos, end, b"NaN"), WORD
    if c == 73:
        return _word(data, pos, end, b"Infinity"), WORD
    if c == _MINUS:
        pos += 1
        if pos < end and data[pos] == 73:
            return _word(data, pos, end, b"Infinity"), WORD
    if pos < end and data[pos] == _ZERO:
        pos += 1
    else:
        pos = _digits(data, pos, end)
    if pos >= 0 and pos < end and data[pos] == 46:
        pos = _digits(data, pos + 1, end)
    if pos >= 0 and pos < end and (data[pos] == 101 or data[pos] == 69):
        pos += 1
        if pos < end and (data[pos] == 43 or data[pos] == _MINUS):
            pos += 1
        pos = _digits(data, pos, end)
    return pos, NUMBER


@njit(cache=True, nogil=True)
def _nested(data: Any, pos: int, end: int) -> int:
    """Past the object or list that starts at ``pos``, -1 if it is none or too deep."""
    objects = np.zeros(_DEEPEST, np.bool_)
    depth = 0
    expected = _VALUE
    while True:
        pos = _skip(data, pos, end)
        if pos >= end:
            return -1
        c = data[pos]
        if expected == _AFTER:
            if c == _COMMA:
                expected = _NAME if objects[depth - 1] else _VALUE
            elif c == (_CLOSE_OBJECT if objects[depth - 1] else _CLOSE_LIST):
                depth -= 1
                if depth == 0:
                    return pos + 1
            else:
                return -1
            pos += 1
        elif (expected == _FIRST_NAME and c == _CLOSE_OBJECT) or (expected == _FIRST_VALUE and c == _CLOSE_LIST):
            expected = _AFTER
        elif expected in (_NAME, _FIRST_NAME):
            if c != _QUOTE:
                return -1
            pos, _ = _string(data, pos + 1, end)
            if pos < 0:
                return -1
            pos = _skip(data, pos, end)
            if pos >= end or data[pos] != _COLON:
                return -1
            pos += 1
            expected = _VALUE
        elif c in (_OPEN_OBJECT, _OPEN_LIST):
            if depth == _DEEPEST:
                return -1
            objects[depth] = c == _OPEN_OBJECT
            depth += 1
            pos += 1
            expected = _FIRST_NAME if c == _OPEN_OBJECT else _FIRST_VALUE
        else:
            pos, _ = _plain(data, pos, end)
            if pos < 0:
                return -1
            expected = _AFTER


@njit(cache=True, nogil=True)
def _slot(data: Any, first: int, last: int, names: Any, offsets: Any) -> int:
    """Which name the bytes spell without regard to case, -1 if none."""
    for slot in range(len(offsets) - 1):
        low = offsets[slot]
        if last - first != offsets[slot + 1] - low:
            continue
        same = True
        for i in range(last - first):
            c = data[first + i]
            if 65 <= c <= 90:
                c += 32
            if c != names[low + i]:
                same = False
                break
        if same:
            return slot
    return -1


@njit(cache=True, nogil=True)
def _scan(data: Any, pos: int, end: int, names: Any, offsets: Any, starts: Any, ends: Any, kinds: Any) -> int:
    """Rows located, -1 if the block is declined."""
    width = len(offsets) - 1
    row = 0
    while True:
        while pos < end and (data[pos] == 10 or data[pos] == 32 or data[pos] == 9 or data[pos] == 13):
            pos += 1
        if pos >= end:
            return row
        if data[pos] != _OPEN_OBJECT:
            return -1
        for slot in range(width):
            kinds[slot, row] = MISSING
            starts[slot, row] = 0
            ends[slot, row] = 0
        pos = _skip(data, pos + 1, end)
        if pos < end and data[pos] == _CLOSE_OBJECT:
            pos += 1
        else:
            while True:
                if pos >= end or data[pos] != _QUOTE:
                    return -1
                first = pos + 1
                pos, kind = _string(data, first, end)
                if pos < 0 or kind == _ESCAPED:
                    return -1
                slot = _slot(data, first, pos - 1, names, offsets)
                pos = _skip(data, pos, end)
                if pos >= end or data[pos] != _COLON:
                    return -1
                first = _skip(data, pos + 1, end)
                if first < end and (data[first] == _OPEN_OBJECT or data[first] == _OPEN_LIST):
                    pos, kind = _nested(data, first, end), NESTED
                else:
                    pos, kind = _plain(data, first, end)
                if pos < 0:
                    return -1
                if slot >= 0:
                    quotes = 1 if kind in (STRING, _ESCAPED) else 0
                    kinds[slot, row] = kind
                    starts[slot, row] = first + quotes
                    ends[slot, row] = pos - quotes
                pos = _skip(data, pos, end)
                if pos >= end:
                    return -1
                c = data[pos]
                pos += 1
                if c == _CLOSE_OBJECT:
                    break
                if c != _COMMA:
                    return -1
                pos = _skip(data, pos, end)
        pos = _skip(data, pos, end)
        if pos < end and data[pos] != 10:
            return -1
        row += 1


@njit(cache=True, nogil=True)
def _gather(data: Any, starts: Any, ends: Any, kinds: Any, offsets: Any, text: Any) -> int:
    """Copy the values into ``text``, escapes taken out; the bytes used, -1 for half a surrogate pair."""
    used = 0
    offsets[0] = 0
    for row in range(len(kinds)):
        kind = kinds[row]
        if kind != MISSING:
            pos = starts[row]
            last = ends[row]
            while pos < last:
                c = data[pos]
                pos += 1
                if kind != _ESCAPED or c != _BACKSLASH:
                    text[used] = c
                    used += 1
                    continue
                c = data[pos]
                pos += 1
                if c != 117:
                    if c == 98:
                        c = 8
                    elif c == 102:
                        c = 12
                    elif c == 110:
                        c = 10
                    elif c == 114:
                        c = 13
                    elif c == 116:
                        c = 9
                    text[used] = c
                    used += 1
                    continue
                point = _hex(data, pos)
                pos += 4
                if 0xD800 <= point < 0xE000:
                    low = -1
                    if point < 0xDC00 and pos + 6 <= last and data[pos] == _BACKSLASH and data[pos + 1] == 117:
                        low = _hex(data, pos + 2)
                    if low < 0xDC00 or low >= 0xE000:
                        return -1
                    pos += 6
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                if point < 0x80:
                    text[used] = point
                    used += 1
                elif point < 0x800:
                    text[used] = 0xC0 | (point >> 6)
                    text[used + 1] = 0x80 | (point & 0x3F)
                    used += 2
                elif point < 0x10000:
                    text[used] = 0xE0 | (point >> 12)
                    text[used + 1] = 0x80 | ((point >> 6) & 0x3F)
                    text[used + 2] = 0x80 | (point & 0x3F)
                    used += 3
                else:
                    text[used] = 0xF0 | (point >> 18)
                    text[used + 1] = 0x80 | ((point >> 12) & 0x3F)
                    text[used + 2] = 0x80 | ((point >> 6) & 0x3F)
                    text[used + 3] = 0x80 | (point & 0x3F)
                    used += 4
        offsets[row + 1] = used
    return used
