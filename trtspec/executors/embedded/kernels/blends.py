"""Weighted sums of rows, as vector code: what the compiler makes of such a loop stores the sum after every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from trtspec.executors.embedded.kernels.vectors import FLOAT, INDEX, LANES, VectorCode


def blend(vectors: int) -> Callable[..., None]:
    """A function of values [P, D], p, a count from 1 on, shares [R, C], r, c, sums [R, D] and d.

    It adds shares[r, c : c + count] times values[p : p + count] to sums[r], in `vectors` * 8 columns from d on, row
    after row. The arrays are C-contiguous and float32.
    """

    @intrinsic
    def function(context: Any, values: Any, p: Any, count: Any, shares: Any, r: Any, c: Any, sums: Any, d: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            code = VectorCode(context, builder)
            arrays = [code.array(kind, arguments[i]) for kind, i in ((values, 0), (shares, 3), (sums, 6))]
            _write(code, arrays, [arguments[i] for i in (1, 2, 4, 5, 7)], vectors)
            return context.get_dummy_value()

        index = types.int64
        return types.void(values, index, index, shares, index, index, sums, index), generate

    return function


def _write(code: VectorCode, arrays: Sequence[Any], at: Sequence[Any], vectors: int) -> None:
    values, shares, sums = arrays
    p, count, r, c, d = at
    width = code.builder.extract_value(values.shape, 1)
    first, share = code.at(code.row(values, p), d), code.at(code.row(shares, r), c)
    places = [code.at(code.at(code.row(sums, r), d), INDEX(LANES * index)) for index in range(vectors)]

    def added(row: Any, known: Sequence[Any]) -> list[Any]:
        weight = code.spread(code.load(code.at(share, row), FLOAT))
        place = code.at(first, code.builder.mul(row, width))
        read = [code.load(code.at(place, INDEX(LANES * index))) for index in range(vectors)]
        return [code.fused(weight, vector, sum_) for vector, sum_ in zip(read, known, strict=True)]

    for total, place in zip(code.sums(count, 1, [code.load(place) for place in places], added), places, strict=True):
        code.store(total, place)
