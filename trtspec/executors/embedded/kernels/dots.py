"""Dot products of stored rows with rows of activations, as vector code.

Written as LLVM instructions because the order matters: weights are read once, in the order in which they lie, and are
fetched some rows ahead; that is all the difference between the speed of the memory and half of it. A tile of several
stored rows and several rows of activations loads each vector once for all sums that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from trtspec.executors.embedded.kernels.vectors import INDEX, INT32, LANES, VECTOR, VectorCode

STEP = LANES
"""Lengths are multiples of it."""
_INTEGERS = ir.VectorType(INT32, LANES)
_ZERO = ir.Constant(VECTOR, [0.0] * LANES)


def tile(outputs: int, rows: int, ahead: int = 0) -> Callable[..., None]:
    """A function of weights [O, K], o, activations [R, K], r, results [R, C] and c.

    It writes results[r : r + rows, c : c + outputs], from weights[o : o + outputs], and fetches weights so many rows
    ahead. The arrays are C-contiguous; weights are float32, int8, or uint16 for the bits of bfloat16. Each sum is taken
    in the same order, whatever the size of the tile.
    """

    @intrinsic
    def function(context: Any, weights: Any, o: Any, x: Any, r: Any, y: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            code = VectorCode(context, builder)
            arrays = [code.array(kind, value) for kind, value in zip((weights, x, y), arguments[::2], strict=True)]
            _Tile(code, weights.dtype, arrays, range(outputs), range(rows), ahead).write(*arguments[1::2])
            return context.get_dummy_value()

        return types.void(weights, types.int64, x, types.int64, y, types.int64), generate

    return function


class _Tile(NamedTuple):
    """What the instructions of one tile are made from."""

    code: VectorCode
    kind: Any
    arrays: Sequence[Any]
    outputs: range
    rows: range
    ahead: int

    def write(self, o: Any, r: Any, c: Any) -> None:
        code, (weights, x, y) = self.code, self.arrays
        length = code.builder.extract_value(weights.shape, 1)
        distance = code.builder.mul(length, INDEX(self.ahead))
        stored = [code.row(weights, o, index) for index in self.outputs]
        given = [code.row(x, r, index) for index in self.rows]

        def added(k: Any, sums: Sequence[Any]) -> list[Any]:
            """All sums after one more vector of each stored row."""
            read = [code.load(code.at(row, k)) for row in given]
            parts, news = iter(sums), []
            for row in stored:
                place = code.at(row, k)
                if self.ahead:
                    code.fetch(code.at(place, distance))
                widened = _widened(code, self.kind, place)
                news += [code.fused(widened, values, next(parts)) for values in read]
            return news

        totals = iter(code.sums(length, LANES, [_ZERO] * (len(self.outputs) * len(self.rows)), added))
        told = [code.row(y, r, index) for index in self.rows]
        for index in self.outputs:
            column = code.builder.add(c, INDEX(index))
            for row in told:
                code.store(code.total(next(totals)), code.at(row, column))


def _widened(code: VectorCode, kind: Any, place: Any) -> Any:
    """A vector of stored numbers as floats."""
    if kind is types.float32:
        return code.load(place)
    stored = code.load(place, ir.VectorType(ir.IntType(kind.bitwidth), LANES))
    if kind.signed:
        return code.builder.sitofp(code.builder.sext(stored, _INTEGERS), VECTOR)
    bits = code.builder.shl(code.builder.zext(stored, _INTEGERS), ir.Constant(_INTEGERS, [16] * LANES))
    return code.builder.bitcast(bits, VECTOR)
