"""The searches along rows say what torch says, on rows that hold ties, infinities and NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trtspec.decoding import rowwise


@pytest.fixture(params=[1, 5])
def values(request: pytest.FixtureRequest) -> Tensor:
    matrix = torch.randn(request.param, 211, generator=torch.Generator().manual_seed(3))
    matrix[:, 50:60] = matrix[:, 7:8]
    matrix[0, 100:140] = -math.inf
    return matrix


def test_argmax_takes_the_first_of_equals_and_nan_first_of_all(values: Tensor) -> None:
    values[0, [20, 30]] = 9.0
    assert rowwise.argmax(values).tolist() == values.max(dim=1).indices.tolist()
    assert rowwise.argmax(values)[0] == 20
    values[0, 40] = math.nan
    assert rowwise.argmax(values)[0] == 40


@pytest.mark.parametrize("count", [1, 17, 211])
def test_the_best_and_the_order(values: Tensor, count: int) -> None:
    assert torch.equal(rowwise.top(values, count), values.topk(count, dim=1).values)
    assert torch.equal(rowwise.descending(values), values.sort(dim=1, descending=True).values)


def test_entries_are_where_a_row_reaches_its_own_least(values: Tensor) -> None:
    values[0, 3] = math.nan
    least = values[:, 7:8].clone()
    flat, row, column = rowwise.entries(values, least)
    expected = (values >= least).nonzero()
    assert torch.equal(torch.stack([row, column], dim=1), expected)
    assert torch.equal(values.flatten()[flat], values[row, column])


def test_a_rows_sum_is_the_same_in_any_batch() -> None:
    """torch splits the sum of a single long row among threads, and so rounds it differently."""
    values = torch.rand(6, 70_001, generator=torch.Generator().manual_seed(4))
    together = rowwise.sums(values)
    assert together.shape == (6, 1)
    assert all(torch.equal(rowwise.sums(values[i : i + 1]), together[i : i + 1]) for i in range(6))
    assert torch.allclose(together.double(), values.double().sum(dim=1, keepdim=True), rtol=1e-6)
