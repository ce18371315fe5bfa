"""Dot products of stored weight rows with rows of activations, as vector code.

Written as LLVM instructions because the order matters: weights are read once, in the order in which they lie, and are
fetched some rows ahead; that is all the difference between the speed of the memory and half of it. A tile of several
weight rows and several rows of activations loads each vector once for all sums that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
STEP = 8
"""Lengths are multiples of it."""
_AHEAD = 4
"""Weight rows that are fetched before their use."""
_FLOAT, _INDEX, _INT32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INTEGERS = ir.VectorType(_INT32, LANES)


def tile(outputs: int, rows: int) -> Callable[..., None]:
    """A function of weights [O, K], o, activations [R, K], r and results [R, O].

    It writes results[r : r + rows, o : o + outputs]. The arrays are C-contiguous; weights are float32, int8, or uint16
    for the bits of bfloat16. Each sum is taken in the same order, whatever the size of the tile.
    """

    @intrinsic
    def function(context: Any, weights: Any, o: Any, x: Any, r: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip((weights, x, y), arguments[::2], strict=True)
            ]
            _Tile(builder, weights.dtype, arrays, arguments[1], arguments[3], outputs, rows).write()
            return context.get_dummy_value()

        return types.void(weights, types.int64, x, types.int64, y), generate

    return function


class _Tile:
    """The instructions of one function."""

    def __init__(self, builder: Any, kind: Any, arrays: Sequence[Any], o: Any, r: Any, outputs: int, rows: int) -> None:
        weights, x, y = arrays
        self._builder, self._kind = builder, kind
        self._length = builder.extract_value(weights.shape, 1)
        width = builder.extract_value(y.shape, 1)
        columns = [builder.add(o, _INDEX(index)) for index in range(outputs)]
        lines = [builder.add(r, _INDEX(index)) for index in range(rows)]
        self._weights = [self._row(weights.data, column, self._length) for column in columns]
        self._rows = [self._row(x.data, line, self._length) for line in lines]
        self._results = [
            [builder.gep(self._row(y.data, line, width), [column]) for line in lines] for column in columns
        ]

    def write(self) -> None:
        builder, before = self._builder, self._builder.block
        loop, done = builder.append_basic_block("dots"), builder.append_basic_block("dots.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_INDEX)
        k.add_incoming(_INDEX(0), before)
        sums = [[builder.phi(_VECTOR) for _ in self._rows] for _ in self._weights]
        following = self._added(k, sums)
        after = builder.add(k, _INDEX(LANES))
        k.add_incoming(after, loop)
        for some, news in zip(sums, following, strict=True):
            for part, new in zip(some, news, strict=True):
                part.add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), before)
                part.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", after, self._length), loop, done)
        builder.position_at_end(done)
        for some, results in zip(following, self._results, strict=True):
            for part, result in zip(some, results, strict=True):
                builder.store(self._total(part), result)

    def _added(self, k: Any, sums: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """All sums after one more vector of weights of each output."""
        builder = self._builder
        fma = self._function("llvm.fma.v8f32", _VECTOR, [_VECTOR] * 3)
        read = [self._loaded(builder.gep(row, [k]), _VECTOR) for row in self._rows]
        news = []
        for weights, some in zip(self._weights, sums, strict=True):
            self._fetch(weights, k)
            widened = self._widened(builder.gep(weights, [k]))
            news.append([builder.call(fma, [widened, x, part]) for x, part in zip(read, some, strict=True)])
        return news

    def _widened(self, place: Any) -> Any:
        """A vector of weights as floats."""
        if self._kind is types.float32:
            return self._loaded(place, _VECTOR)
        stored = self._loaded(place, ir.VectorType(ir.IntType(self._kind.bitwidth), LANES))
        if self._kind.signed:
            return self._builder.sitofp(self._builder.sext(stored, _INTEGERS), _VECTOR)
        bits = self._builder.shl(self._builder.zext(stored, _INTEGERS), ir.Constant(_INTEGERS, [16] * LANES))
        return self._builder.bitcast(bits, _VECTOR)

    def _fetch(self, weights: Any, k: Any) -> None:
        builder, byte = self._builder, ir.IntType(8).as_pointer()
        prefetch = self._function("llvm.prefetch.p0", ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        ahead = builder.gep(weights, [builder.add(k, builder.mul(self._length, _INDEX(_AHEAD)))])
        builder.call(prefetch, [builder.bitcast(ahead, byte), _INT32(0), _INT32(3), _INT32(1)])

    def _total(self, part: Any) -> Any:
        add = self._function("llvm.vector.reduce.fadd.v8f32", _FLOAT, [_FLOAT, _VECTOR])
        return self._builder.call(add, [_FLOAT(0.0), part], fastmath=("reassoc",))

    def _row(self, data: Any, index: Any, width: Any) -> Any:
        return self._builder.gep(data, [self._builder.mul(index, width)])

    def _loaded(self, place: Any, kind: Any) -> Any:
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()), align=1)

    def _function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self._builder.module, kind, name)  # type: ignore[no-untyped-call]
