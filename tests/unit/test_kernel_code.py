"""The vector code under the kernels, with the vectors of this CPU and of others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit
from numpy.typing import NDArray

from trtspec.executors.embedded.kernels.blends import blend
from trtspec.executors.embedded.kernels.dots import tile

Floats = NDArray[np.float32]
LANES = pytest.mark.parametrize("lanes", [8, 16])
FORMS = ("float32", "bfloat16", "int8")


def draw(*shape: int, form: str = "float32") -> tuple[NDArray[np.generic], Floats]:
    """Numbers as they are stored, and their values."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    if form == "int8":
        whole = (values * 30).round().clamp(-127, 127).to(torch.int8)
        return whole.numpy(), whole.float().numpy()
    if form == "bfloat16":
        whole = values.bfloat16()
        return whole.view(torch.uint16).numpy(), whole.float().numpy()
    return values.numpy(), values.numpy()


@LANES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("outputs", "rows"), [(1, 1), (2, 4), (2, 8), (4, 1)])
def test_a_tile_is_the_dot_products_of_its_rows(lanes: int, form: str, outputs: int, rows: int) -> None:
    code = tile(outputs, rows, 4, lanes)

    @njit  # type: ignore[untyped-decorator]
    def run(weights: NDArray[np.generic], o: int, x: Floats, r: int, y: Floats, c: int) -> None:
        code(weights, o, x, r, y, c)

    for width in (8, 16, 24, 64, 72):
        (weights, plain), (x, _) = draw(outputs + 2, width, form=form), draw(rows + 1, width)
        y = np.full((rows + 1, outputs + 3), 7, np.float32)
        run(weights, 1, x, 1, y, 2)
        expected = np.full_like(y, 7)
        expected[1:, 2 : 2 + outputs] = x[1:] @ plain[1 : 1 + outputs].T
        np.testing.assert_allclose(y, expected, atol=1e-4, rtol=1e-5)


@LANES
@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (4, 64), (4, 16), (1, 8), (4, 8)])
def test_a_blend_adds_rows_by_their_shares(lanes: int, form: str, rows: int, columns: int) -> None:
    code = blend(rows, columns, lanes)

    @njit  # type: ignore[untyped-decorator]
    def run(
        values: NDArray[np.generic], p: int, count: int, shares: Floats, r: int, c: int, sums: Floats, d: int
    ) -> None:
        code(values, p, count, shares, r, c, sums, d)

    for count in (0, 1, 5):
        (values, plain), (shares, _) = draw(7, columns + 8, form=form), draw(rows + 1, 9)
        sums = np.full((rows + 1, columns + 8), 7, np.float32)
        run(values, 2, count, shares, 1, 3, sums, 8)
        expected = np.full_like(sums, 7)
        expected[1:, 8:] += shares[1:, 3 : 3 + count] @ plain[2 : 2 + count, 8:]
        np.testing.assert_allclose(sums, expected, atol=1e-4, rtol=1e-5)
