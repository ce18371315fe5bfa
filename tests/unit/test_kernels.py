"""The kernels for few rows, against PyTorch."""

from __future__ import annotations

import math
from itertools import product as pairs

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from trtspec.executors.embedded.kernels.exponential import exp
from trtspec.executors.embedded.kernels.products import (
    Matrix,
    added_into,
    fits,
    gated_into,
    normalised,
    padded,
    product,
)
from trtspec.executors.embedded.weights import Int8Weight, Weight

OUT, NARROW, WIDE = 70, 48, 1040
"""Rows and widths of matrices."""
TOLERANCE = 1e-4
FORMS = ("float32", "bfloat16", "int8")


def stored(form: str, width: int) -> tuple[Weight, Tensor]:
    """A matrix as an engine stores it, and its values."""
    values = torch.randn(OUT, width, generator=torch.Generator().manual_seed(1)) / math.sqrt(width)
    if form == "int8":
        matrix = Int8Weight((values * 100).round().to(torch.int8), (torch.rand(OUT) + 0.5) / 100)
        return matrix, matrix.dense(torch.float32)
    kept = values.to(getattr(torch, form))
    return kept, kept.float()


@pytest.fixture(scope="module", params=pairs(FORMS, (NARROW, WIDE)))
def matrix(request: pytest.FixtureRequest) -> tuple[Matrix, Tensor]:
    weight, values = stored(*request.param)
    return Matrix.of(weight), values


def test_rows_are_padded_to_groups() -> None:
    few = [padded(rows) for rows in (0, 1, 2, 4, 8, 9, 10, 12)]
    assert few == [0, 1, 4, 4, 8, 9, 12, 12] and padded(5) in (5, 8)
    assert fits(40) and not fits(36)


@pytest.mark.parametrize("rows", [1, 4, padded(5), 8, 9, 12])
def test_products_are_those_of_pytorch(matrix: tuple[Matrix, Tensor], rows: int) -> None:
    weight, values = matrix
    x = torch.randn(rows, values.shape[1], generator=torch.Generator().manual_seed(rows))
    bias, before = torch.randn(OUT), torch.randn(rows, OUT)
    expected = x @ values.T
    assert_near(product(x.numpy(), weight), expected)
    assert_near(product(x.numpy(), weight, bias.numpy()), expected + bias)
    found = np.empty((rows, OUT), np.float32)
    added_into(before.numpy(), x.numpy(), weight.values, weight.scales, found)
    assert_near(found, before + expected)
    gated, room = np.empty((rows, OUT // 2), np.float32), np.empty((rows, OUT), np.float32)
    gated_into(x.numpy(), weight.values, weight.scales, room, gated)
    gate, up = expected.chunk(2, dim=1)
    assert_near(gated, silu(gate) * up)


def test_a_row_does_not_depend_on_the_others(matrix: tuple[Matrix, Tensor]) -> None:
    """Bit by bit: a request's text depends neither on who else is in the batch nor on how much is drafted."""
    weight, values = matrix
    x = torch.randn(12, values.shape[1], generator=torch.Generator().manual_seed(3)).numpy()
    whole = product(x, weight)
    for count in (4, 8, 9):
        assert (product(x[:count], weight) == whole[:count]).all()
    for row in range(12):
        assert (product(x[row : row + 1], weight) == whole[row]).all()


def test_what_is_no_number_stays_in_its_row(matrix: tuple[Matrix, Tensor]) -> None:
    weight, values = matrix
    x = np.ones((4, values.shape[1]), np.float32)
    x[2, 5] = np.nan
    found = product(x, weight)
    assert np.isnan(found[2]).all() and np.isfinite(found[[0, 1, 3]]).all()


def test_some_rows_of_a_matrix(matrix: tuple[Matrix, Tensor]) -> None:
    weight, values = matrix
    assert_near(weight.at(torch.tensor([3, 69, 3])).numpy(), values[[3, 69, 3]])
    x = np.ones((1, values.shape[1]), np.float32)
    assert (product(x, weight.first(33)) == product(x, weight)[:, :33]).all()


def test_a_pass_may_score_nothing(matrix: tuple[Matrix, Tensor]) -> None:
    weight, values = matrix
    assert product(np.empty((padded(0), values.shape[1]), np.float32), weight).shape == (0, OUT)


def test_norms_are_those_of_pytorch() -> None:
    x, scale = torch.randn(4, NARROW), torch.rand(NARROW)
    assert_near(normalised(x.numpy(), scale.numpy(), np.float32(1e-3)), rms_norm(x, scale.shape, scale, 1e-3))


def test_the_exponential_is_exact_to_three_units_and_never_infinite() -> None:
    x = np.linspace(-87, 88, 3001).astype(np.float32)
    found = np.array([exp(value) for value in x])
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < 3 * 2**-23
    assert exp(np.float32(-1e9)) < 1e-37 and np.isfinite(exp(np.float32(1e9))) and np.isnan(exp(np.float32(np.nan)))


def assert_near(found: NDArray[np.float32], expected: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=TOLERANCE, rtol=TOLERANCE)
