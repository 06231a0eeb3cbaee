# mypy: disable-error-code="no-untyped-call, untyped-decorator, unused-ignore, call-arg, return-value"
"""Several bytes at a time, at any address: numba has no words for that, so these intrinsics say it.

They are generic LLVM: whatever the processor has for them is used. An address is a number (an array's is
``array.ctypes.data``), so that a function can be given one for nothing: an array it is given is counted, which
costs more than a field's parsing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

BLOCK = 32
"""Bytes that :func:`matches` looks at."""
WIDE = 32
"""Bytes that :func:`copy_wide` copies."""


def _load(builder: Any, address: Any, type: ir.Type) -> Any:
    loaded = builder.load(builder.inttoptr(address, type.as_pointer()))
    loaded.align = 1
    return loaded


def _store(builder: Any, value: Any, address: Any) -> None:
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = 1


@intrinsic
def byte(context: Any, at: Any) -> Any:
    """The byte at an address."""
    return types.uint8(types.intp), lambda context, builder, signature, args: _load(builder, args[0], ir.IntType(8))


@intrinsic
def word(context: Any, at: Any) -> Any:
    """The eight bytes from an address on."""
    return types.uint64(types.intp), lambda context, builder, signature, args: _load(builder, args[0], ir.IntType(64))


def _put(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    _store(builder, args[1], args[0])
    return context.get_dummy_value()


@intrinsic
def put_byte(context: Any, to: Any, value: Any) -> Any:
    """Write a byte at an address."""
    return types.void(types.intp, types.uint8), _put


@intrinsic
def put_word(context: Any, to: Any, value: Any) -> Any:
    """Write eight bytes from an address on."""
    return types.void(types.intp, types.uint64), _put


@intrinsic
def copy_wide(context: Any, at: Any, to: Any) -> Any:
    """Copy WIDE bytes from an address to another."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, _load(builder, args[0], ir.VectorType(ir.IntType(8), WIDE)), args[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), code


@intrinsic
def matches(context: Any, at: Any, byte: Any) -> Any:
    """Which of a block of bytes from an address on are ``byte``: a bit each, the first the lowest."""
    lanes = ir.VectorType(ir.IntType(8), BLOCK)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), args[1], ir.Constant(ir.IntType(32), 0))
        wanted = builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), everywhere)
        equal = builder.icmp_unsigned("==", _load(builder, args[0], lanes), wanted)
        return builder.bitcast(equal, ir.IntType(BLOCK))

    return types.uint32(types.intp, types.uint8), code


@intrinsic
def count_bits(context: Any, bits: Any) -> Any:
    """How many bits are set."""
    return types.uint32(types.uint32), lambda context, builder, signature, args: builder.ctpop(args[0])


@intrinsic
def lowest_bit(context: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set; as many as there are if none is."""
    never = ir.Constant(ir.IntType(1), 0)
    return bits(bits), lambda context, builder, signature, args: builder.cttz(args[0], never)


@intrinsic
def leading_zeros(context: Any, bits: Any) -> Any:
    """How many bits above the highest that is set are not."""
    never = ir.Constant(ir.IntType(1), 0)
    return types.uint32(types.uint32), lambda context, builder, signature, args: builder.ctlz(args[0], never)


@njit(cache=True, nogil=True)
def leading_digits(text: Any) -> int:
    """How many of a word's bytes, from the first on, are decimal digits.

    A digit is 0x30 to 0x39: its upper half is 3, and still 3 with six added. (A carry out of a byte comes from one
    that is no digit, and only spoils those after it.)
    """
    upper = np.uint64(0xF0F0F0F0F0F0F0F0)
    threes = np.uint64(0x3030303030303030)
    others = ((text & upper) ^ threes) | (((text + np.uint64(0x0606060606060606)) & upper) ^ threes)
    return np.int64(lowest_bit(others) >> np.uint64(3))


@njit(cache=True, nogil=True)
def number(text: Any, digits: int) -> int:
    """The number that the first one to eight bytes of a word spell: pairs of digits, pairs of pairs, both halves."""
    text = text << np.uint64(64 - 8 * digits)
    text = ((text & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(10 << 8 | 1)) >> np.uint64(8)
    text = ((text & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(100 << 16 | 1)) >> np.uint64(16)
    return np.int64(((text & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(10000 << 32 | 1)) >> np.uint64(32))
