# mypy: disable-error-code="no-untyped-call, call-arg, assignment, untyped-decorator, unused-ignore"
"""Compiled code that turns text of Arrow's plain layout into views in a ring's slots.

Text is moved eight bytes at a time, from and to anywhere: numba has no words for that, so two intrinsics say it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from headrace.stream.ring.layout import INLINE


@intrinsic
def _word(context: Any, array: Any, at: Any) -> Any:
    """Eight bytes of an array from anywhere on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = builder.gep(make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        loaded = builder.load(builder.bitcast(start, ir.IntType(64).as_pointer()))
        loaded.align = 1
        return loaded

    return types.uint64(array, types.intp), code


@intrinsic
def _put_word(context: Any, array: Any, at: Any, value: Any) -> Any:
    """Write eight bytes anywhere into an array."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = builder.gep(make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        stored = builder.store(args[2], builder.bitcast(start, ir.IntType(64).as_pointer()))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), code


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


@njit(cache=True, nogil=True)
def store_text(offsets: Any, marks: Any, text: Any, slots: Any, buffer: Any, at: int) -> int:
    """Write views of the text into slots, and long text into the buffer from ``at`` on; returns its end.

    A slot is two words: the length and the first four bytes; then eight more, or a buffer's number (0) and an offset.
    """
    masked = len(marks) > 0
    safe = len(text) - 16  # from here on, sixteen bytes cannot be read at once
    for i in range(len(offsets) - 1):
        start = np.int64(offsets[i])
        size = np.int64(offsets[i + 1]) - start
        first, second = np.uint64(0), np.uint64(0)
        if masked and marks[i]:
            size = np.int64(0)
        elif size <= INLINE:
            low, high = np.uint64(0), np.uint64(0)
            if start <= safe:
                low, high = _word(text, start), _word(text, start + 8)
                if size < 8:
                    low &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
                    high = np.uint64(0)
                else:
                    high &= (np.uint64(1) << np.uint64(8 * (size - 8))) - np.uint64(1)
            else:
                for b in range(size):
                    if b < 8:
                        low |= np.uint64(text[start + b]) << np.uint64(8 * b)
                    else:
                        high |= np.uint64(text[start + b]) << np.uint64(8 * (b - 8))
            first, second = low << np.uint64(32), (low >> np.uint64(32)) | (high << np.uint64(32))
        else:
            first, second = _word(text, start) << np.uint64(32), np.uint64(at) << np.uint64(32)
            for b in range(0, size - 7, 8):
                _put_word(buffer, at + b, _word(text, start + b))
            _put_word(buffer, at + size - 8, _word(text, start + size - 8))
            at += size
        slots[i, 0] = np.int64(first | np.uint64(size))
        slots[i, 1] = np.int64(second)
    return at


def warm_up() -> None:
    """Compile the kernels, or load them: a first insert should not wait for that while queries' windows end."""
    offsets, text = np.frombuffer(bytes(8), np.int32), np.frombuffer(bytes(1), np.uint8)
    slots, buffer = np.zeros((2, 2), np.int64), np.zeros(1, np.uint8)
    long_bytes(offsets, no_marks())
    store_text(offsets, no_marks(), text, slots[:1], buffer, 0)


def no_marks() -> Any:
    """What stands for the marks of a column without NULLs."""
    return np.empty(0, np.uint8)
