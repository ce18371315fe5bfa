"""Floats as bits: rounded to what a cache holds, and put together from an exponent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_INT32 = ir.IntType(32)


@intrinsic
def of_bits(context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def rounded_like(context: Any, x: Any, place: Any) -> Any:
    """A float32 as an array like `place` holds it: itself, or for uint16 the bits of the nearest bfloat16.

    Ties go to even bits, and what is not a number stays none.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        if place.dtype is types.float32:
            return arguments[0]
        bits = builder.bitcast(arguments[0], _INT32)
        odd = builder.and_(builder.lshr(bits, _INT32(16)), _INT32(1))
        rounded = builder.add(bits, builder.add(odd, _INT32(0x7FFF)))
        quiet = builder.or_(bits, _INT32(0x400000))
        number = builder.fcmp_ordered("ord", arguments[0], arguments[0])
        return builder.trunc(builder.lshr(builder.select(number, rounded, quiet), _INT32(16)), ir.IntType(16))

    return place.dtype(types.float32, place), generate
