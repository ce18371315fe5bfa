"""Weighted sums of rows, as vector code: what the compiler makes of such a loop stores the sum after every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from trtspec.executors.embedded.kernels.vectors import INDEX, LANES, STEP, VectorCode


def blend(rows: int, columns: int, lanes: int = LANES) -> Callable[..., None]:
    """A function of values [P, D], p, a count, shares [R, C], r, c, sums [R, D] and d.

    It adds shares[r, c : c + count] times values[p : p + count] to sums[r], for so many r and in so many columns from d
    on, one value after the other. The arrays are C-contiguous and float32; values may be uint16 for the bits of
    bfloat16. A sum does not depend on how many are taken at once.
    """

    @intrinsic
    def function(context: Any, values: Any, p: Any, count: Any, shares: Any, r: Any, c: Any, sums: Any, d: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
            code = VectorCode(context, builder, lanes if columns % lanes == 0 else STEP)
            arrays = [code.array(kind, arguments[i]) for kind, i in ((values, 0), (shares, 3), (sums, 6))]
            _write(code, values.dtype, arrays, [arguments[i] for i in (1, 2, 4, 5, 7)], rows, columns)
            return context.get_dummy_value()

        index = types.int64
        return types.void(values, index, index, shares, index, index, sums, index), generate

    return function


def _write(code: VectorCode, kind: Any, arrays: Sequence[Any], at: Sequence[Any], rows: int, columns: int) -> None:
    values, shares, sums = arrays
    p, count, r, c, d = at
    width, offsets = code.builder.extract_value(values.shape, 1), range(0, columns, code.lanes)
    first = code.at(code.row(values, p), d)
    weights = [code.at(code.row(shares, r, index), c) for index in range(rows)]
    starts = [code.at(code.row(sums, r, index), d) for index in range(rows)]
    places = [code.at(start, INDEX(offset)) for start in starts for offset in offsets]

    def added(index: Any, known: Sequence[Any]) -> list[Any]:
        place = code.at(first, code.builder.mul(index, width))
        read = [code.load(code.at(place, INDEX(offset)), kind) for offset in offsets]
        spread = [code.spread(code.number(code.at(weight, index))) for weight in weights]
        parts = iter(known)
        return [code.fused(weight, vector, next(parts)) for weight in spread for vector in read]

    totals = code.sums(INDEX(0), count, 1, [code.load(place) for place in places], added)
    for total, place in zip(totals, places, strict=True):
        code.store(total, place)
