"""Products of few rows with stored matrices. Weights are read once, whatever the number of rows.

Rows come padded (`padded`), so that they go in whole groups. What a row comes to does not depend on how many there are,
bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import config, prange
from numpy.typing import NDArray

from trtspec.executors.embedded.kernels.compiling import inlined, parallel, serial
from trtspec.executors.embedded.kernels.dots import tile
from trtspec.executors.embedded.kernels.exponential import exp
from trtspec.executors.embedded.kernels.vectors import LANES, STEP
from trtspec.executors.embedded.weights import Int8Weight, Weight, first_rows

Floats = NDArray[np.float32]
MOST_ROWS = 12
"""Beyond, compiled graphs are as fast or faster, with bfloat16 instructions and without."""
NONE = np.zeros(0, np.float32)
_LINE = 16
"""Floats in a line of the cache."""
_GROUP, _CHUNK = 4, 32
"""Rows that go together, and most columns that a thread takes at once."""
_SHARES: int = 4 * config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
"""Into which columns are divided where there are enough: threads take turns when one of them is held up."""
_MOST = 8 if LANES > STEP else _GROUP
"""Rows that go together where there are so many."""
_AHEAD = 4
"""Weight rows that are fetched before their use."""
_tile_1x1, _tile_1x4 = tile(1, 1, _AHEAD), tile(1, _GROUP, _AHEAD)
_tile_2x1, _tile_2x4, _tile_2xmost = tile(2, 1, _AHEAD), tile(2, _GROUP, _AHEAD), tile(2, _MOST, 2 * _AHEAD)
"""By columns and rows of the result."""


def padded(rows: int) -> int:
    """How many rows are computed for so many: the largest groups, and perhaps one of four or one alone."""
    rest = rows % _MOST
    return rows - rest + next(size for size in (0, 1, _GROUP, _MOST) if rest <= size)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stored matrix as kernels read it; its memory is that of the stored one."""

    stored: Weight  # [out, in]
    values: NDArray[np.generic]  # [out, in], float32, int8, or uint16 for the bits of bfloat16
    scales: Floats  # [out], or empty

    @classmethod
    def of(cls, stored: Weight) -> Matrix:
        if isinstance(stored, Int8Weight):
            return cls(stored, stored.values.contiguous().numpy(), stored.scales.contiguous().numpy())
        whole = stored.contiguous()
        bits = whole.view(torch.uint16) if whole.dtype is torch.bfloat16 else whole
        return cls(stored, bits.numpy(), NONE)

    def first(self, count: int) -> Matrix:
        """Its first rows, in place."""
        return Matrix.of(first_rows(self.stored, count))

    def at(self, indices: torch.Tensor) -> torch.Tensor:
        """Some rows as float32, [T] -> [T, in]."""
        if isinstance(self.stored, Int8Weight):
            return self.stored.values[indices].float() * self.stored.scales[indices].unsqueeze(1)
        return self.stored[indices].float()


def fits(*widths: int) -> bool:
    """Kernels read inputs of these widths."""
    return all(width % STEP == 0 for width in widths)


def product(x: Floats, matrix: Matrix, bias: Floats = NONE) -> Floats:
    """[padded, in] -> [padded, out]."""
    y = np.empty((len(x), len(matrix.values)), np.float32)
    product_into(x, matrix.values, matrix.scales, bias, y)
    return y


def floats_of(tensor: torch.Tensor | None) -> Floats:
    """A norm or a bias; empty where the model lacks it."""
    found: Floats = NONE if tensor is None else np.ascontiguousarray(tensor.numpy())
    return found


@inlined
def room(rows: int, width: int) -> Floats:
    """[rows, width] of anything, beginning with a cache line, so that few vectors of it lie across two of them."""
    whole = np.empty(rows * width + _LINE, np.float32)
    skipped = -(whole.ctypes.data // whole.itemsize) % _LINE
    return whole[skipped : skipped + rows * width].reshape(rows, width)


@serial
def normalised(x: Floats, scale: Floats, epsilon: np.float32) -> Floats:
    """RMSNorm over the last dimension."""
    y = room(x.shape[0], x.shape[1])
    for row in range(x.shape[0]):
        square = np.float32(0)
        for k in range(x.shape[1]):
            square += x[row, k] * x[row, k]
        factor = np.float32(1 / np.sqrt(square / x.shape[1] + epsilon))
        for k in range(x.shape[1]):
            y[row, k] = x[row, k] * factor * scale[k]
    return y


@inlined
def _columns(weights: Any, begin: int, end: int, x: Floats, y: Floats) -> None:
    """Some columns of the result. From the fifth row on arithmetic decides and not memory, and columns go in pairs."""
    count, o = x.shape[0], begin
    most, fours = count - count % _MOST, count - count % _GROUP
    if count > _GROUP:
        while o + 2 <= end:
            for row in range(0, most, _MOST):
                _tile_2xmost(weights, o, x, row, y, o)
            for row in range(most, fours, _GROUP):
                _tile_2x4(weights, o, x, row, y, o)
            if fours < count:
                _tile_2x1(weights, o, x, fours, y, o)
            o += 2
    for column in range(o, end):
        for row in range(0, fours, _GROUP):
            _tile_1x4(weights, column, x, row, y, column)
        if fours < count:
            _tile_1x1(weights, column, x, fours, y, column)


@inlined
def _share(columns: int) -> int:
    """How many columns a thread takes at once: an even number, for pairs."""
    each = columns // _SHARES
    return max(2, min(_CHUNK, each + each % 2))


@parallel
def product_into(x: Floats, weights: Any, scales: Floats, bias: Floats, y: Floats) -> None:
    """[padded, in] -> y [padded, out]; empty scales and bias are none."""
    share = _share(y.shape[1])
    for part in prange(-(-y.shape[1] // share)):
        begin, end = part * share, min((part + 1) * share, y.shape[1])
        _columns(weights, begin, end, x, y)
        for row in range(x.shape[0]):
            for o in range(begin, end):
                scaled = y[row, o] * scales[o] if scales.size else y[row, o]
                y[row, o] = scaled + bias[o] if bias.size else scaled


@parallel
def added_into(residual: Floats, x: Floats, weights: Any, scales: Floats, y: Floats) -> None:
    """The residual and the product: [padded, out], [padded, in] -> y [padded, out]."""
    share = _share(y.shape[1])
    for part in prange(-(-y.shape[1] // share)):
        begin, end = part * share, min((part + 1) * share, y.shape[1])
        _columns(weights, begin, end, x, y)
        for row in range(x.shape[0]):
            for o in range(begin, end):
                y[row, o] = residual[row, o] + (y[row, o] * scales[o] if scales.size else y[row, o])


@parallel
def gated_into(x: Floats, weights: Any, scales: Floats, both: Floats, y: Floats) -> None:
    """SwiGLU over stacked halves, [padded, in] -> y [padded, out / 2] (Shazeer 2020); `both` [padded, out] is room."""
    half = y.shape[1]
    share = _share(half)
    for part in prange(-(-half // share)):
        begin, end = part * share, min((part + 1) * share, half)
        _columns(weights, begin, end, x, both)
        _columns(weights, half + begin, half + end, x, both)
        for row in range(x.shape[0]):
            if scales.size:
                for o in range(begin, end):
                    both[row, o] *= scales[o]
                    both[row, half + o] *= scales[half + o]
            for o in range(begin, end):
                gate = both[row, o]
                y[row, o] = gate / (np.float32(1) + exp(-gate)) * both[row, half + o]
