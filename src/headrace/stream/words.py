# mypy: disable-error-code="no-untyped-call, untyped-decorator, unused-ignore"
"""Several bytes at a time, from and to anywhere in an array: numba has no words for that, so these intrinsics say it.

They are generic LLVM: whatever the processor has for them is used.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

BLOCK = 32
"""Bytes that :func:`matches` looks at."""
WIDE = 32
"""Bytes that :func:`copy_wide` copies."""


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any, type: ir.Type) -> Any:
    """Where an array of bytes holds a value of this type from ``at`` on."""
    start = builder.gep(make_array(kind)(context, builder, array).data, [at])
    return builder.bitcast(start, type.as_pointer())


@intrinsic
def word(context: Any, array: Any, at: Any) -> Any:
    """Eight bytes of an array from anywhere on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_address(context, builder, signature.args[0], args[0], args[1], ir.IntType(64)))
        loaded.align = 1
        return loaded

    return types.uint64(array, types.intp), code


@intrinsic
def put_word(context: Any, array: Any, at: Any, value: Any) -> Any:
    """Write eight bytes anywhere into an array."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = builder.store(args[2], _address(context, builder, signature.args[0], args[0], args[1], ir.IntType(64)))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), code


@intrinsic
def copy_wide(context: Any, array: Any, at: Any, into: Any, to: Any) -> Any:
    """Copy WIDE bytes from anywhere to anywhere."""
    lanes = ir.VectorType(ir.IntType(8), WIDE)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_address(context, builder, signature.args[0], args[0], args[1], lanes))
        loaded.align = 1
        stored = builder.store(loaded, _address(context, builder, signature.args[2], args[2], args[3], lanes))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, into, types.intp), code


@intrinsic
def matches(context: Any, array: Any, at: Any, byte: Any) -> Any:
    """Which of a block of bytes from anywhere on are ``byte``: a bit each, the first the lowest."""
    lanes = ir.VectorType(ir.IntType(8), BLOCK)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_address(context, builder, signature.args[0], args[0], args[1], lanes))
        loaded.align = 1
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0))
        wanted = builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), everywhere)
        return builder.bitcast(builder.icmp_unsigned("==", loaded, wanted), ir.IntType(BLOCK))

    return types.uint32(array, types.intp, types.uint8), code


@intrinsic
def count_bits(context: Any, bits: Any) -> Any:
    """How many bits are set."""
    return types.uint32(types.uint32), lambda context, builder, signature, args: builder.ctpop(args[0])


@intrinsic
def lowest_bit(context: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set; as many as there are if none is."""
    never = ir.Constant(ir.IntType(1), 0)
    return types.uint32(types.uint32), lambda context, builder, signature, args: builder.cttz(args[0], never)
