"""Dot products of stored rows with rows of activations, as vector code.

Written as LLVM instructions because the order matters: weights are read once, in the order in which they lie, and are
fetched some rows ahead; that is all the difference between the speed of the memory and half of it. A tile of several
stored rows and several rows of activations loads each vector once for all sums that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba import types
from numba.extending import intrinsic

from trtspec.executors.embedded.kernels.vectors import FLOAT, INDEX, LANES, STEP, VectorCode


def tile(outputs: int, rows: int, ahead: int = 0, lanes: int = LANES) -> Callable[..., None]:
    """A function of weights [O, K], o, activations [R, K], r, results [R, C] and c.

    It writes results[r : r + rows, c : c + outputs], from weights[o : o + outputs], and fetches weights so many rows
    ahead. The arrays are C-contiguous; weights are float32, int8, or uint16 for the bits of bfloat16. Each sum is taken
    in the same order, whatever the size of the tile; vectors of so many lanes are the order.
    """

    @intrinsic
    def function(context: Any, weights: Any, o: Any, x: Any, r: Any, y: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            codes = [VectorCode(context, builder, width) for width in sorted({lanes, STEP}, reverse=True)]
            arrays = [codes[0].array(kind, value) for kind, value in zip((weights, x, y), arguments[::2], strict=True)]
            _Tile(codes, weights.dtype, arrays, range(outputs), range(rows), ahead).write(*arguments[1::2])
            return context.get_dummy_value()

        return types.void(weights, types.int64, x, types.int64, y, types.int64), generate

    return function


class _Tile(NamedTuple):
    """What the instructions of one tile are made from."""

    codes: Sequence[VectorCode]
    """From wide vectors to narrow ones, which read what the wide ones leave."""
    kind: Any
    arrays: Sequence[Any]
    outputs: range
    rows: range
    ahead: int

    def write(self, o: Any, r: Any, c: Any) -> None:
        code, (weights, x, y) = self.codes[0], self.arrays
        length, begin = code.builder.extract_value(weights.shape, 1), INDEX(0)
        stored = [code.row(weights, o, index) for index in self.outputs]
        given = [code.row(x, r, index) for index in self.rows]
        sums = [FLOAT(0.0)] * (len(stored) * len(given))
        for code in self.codes:
            end = code.builder.and_(length, INDEX(-code.lanes))
            vectors = self._products(code, stored, given, begin, end)
            sums, begin = [code.total(vector, start) for vector, start in zip(vectors, sums, strict=True)], end
        told, totals = [code.row(y, r, index) for index in self.rows], iter(sums)
        for index in self.outputs:
            column = code.builder.add(c, INDEX(index))
            for row in told:
                code.store(next(totals), code.at(row, column))

    def _products(self, code: VectorCode, stored: Sequence[Any], given: Sequence[Any], begin: Any, end: Any) -> Any:
        """Of part of the rows, by lane: one vector for each stored and each given row."""
        length = code.builder.extract_value(self.arrays[0].shape, 1)
        distance = code.builder.mul(length, INDEX(self.ahead))

        def added(k: Any, sums: Sequence[Any]) -> list[Any]:
            read = [code.load(code.at(row, k)) for row in given]
            parts, news = iter(sums), []
            for row in stored:
                place = code.at(row, k)
                if self.ahead:
                    code.fetch(code.at(place, distance))
                widened = code.load(place, self.kind)
                news += [code.fused(widened, values, next(parts)) for values in read]
            return news

        return code.sums(begin, end, code.lanes, code.zeros(len(stored) * len(given)), added)
