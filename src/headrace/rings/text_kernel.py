# mypy: disable-error-code="no-untyped-call, call-arg, assignment, untyped-decorator, unused-ignore"
"""Compiled code that turns text of Arrow's plain layout into views in a ring's slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.input.words import WIDE, copy_wide, put_word, word
from headrace.rings.layout import INLINE, NO_MARKS


@njit(cache=True, nogil=True)
def long_bytes(offsets: Any, marks: Any) -> int:
    """How many bytes of text do not fit into slots."""
    total = 0
    masked = len(marks) > 0
    for i in range(len(offsets) - 1):
        size = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        if size > INLINE and not (masked and marks[i]):
            total += size
    return total


_LOW = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(INLINE + 1)], np.uint64)
_HIGH = np.array([(1 << 8 * max(size - 8, 0)) - 1 for size in range(INLINE + 1)], np.uint64)
"""What of sixteen bytes belongs to a text of so many."""


@njit(cache=True, nogil=True)
def store_text(offsets: Any, marks: Any, text: Any, slots: Any, buffer: Any, at: int, end: int) -> int:
    """Write views of the text into slots, and long text into the buffer from ``at`` on; returns where it ends.

    A slot is two words: the length and the first four bytes; then eight more, or a buffer's number (0) and an offset.
    The buffer is the caller's up to ``end``: bytes after a text are written over by the next one.
    """
    masked = len(marks) > 0
    source, target = text.ctypes.data, buffer.ctypes.data
    safe = len(text) - WIDE  # from here on, not that many can be read at once
    for i in range(len(offsets) - 1):
        start = np.int64(offsets[i])
        size = np.int64(offsets[i + 1]) - start
        first, second = np.uint64(0), np.uint64(0)
        if masked and marks[i]:
            size = np.int64(0)
        elif size <= INLINE:
            low, high = np.uint64(0), np.uint64(0)
            if start <= safe:
                low, high = word(source + start) & _LOW[size], word(source + start + 8) & _HIGH[size]
            else:
                for b in range(size):
                    if b < 8:
                        low |= np.uint64(text[start + b]) << np.uint64(8 * b)
                    else:
                        high |= np.uint64(text[start + b]) << np.uint64(8 * (b - 8))
            first, second = low << np.uint64(32), (low >> np.uint64(32)) | (high << np.uint64(32))
        else:
            first, second = word(source + start) << np.uint64(32), np.uint64(at) << np.uint64(32)
            done = 0
            if start <= safe and at + WIDE <= end:
                copy_wide(source + start, target + at)
                done = WIDE
            for b in range(done, size - 7, 8):
                put_word(target + at + b, word(source + start + b))
            if done < size:
                put_word(target + at + size - 8, word(source + start + size - 8))
            at += size
        slots[i, 0] = np.int64(first | np.uint64(size))
        slots[i, 1] = np.int64(second)
    return at


def warm_up() -> None:
    """Compile the kernels, or load them: a first insert should not wait for that while queries' windows end."""
    offsets, text = np.frombuffer(bytes(8), np.int32), np.frombuffer(bytes(1), np.uint8)
    slots, buffer = np.zeros((2, 2), np.int64), np.zeros(1, np.uint8)
    long_bytes(offsets, NO_MARKS)
    store_text(offsets, NO_MARKS, text, slots[:1], buffer, 0, 0)
