"""Searches along the rows of a matrix of logits, which torch does slowly on a CPU.

There NumPy's are faster (two threads of a Zen 3 processor, 8 rows of 49,152: the arg-max 8 times, a sort 90 times),
wait for no other thread, and give a row the same result whatever rows are beside it; torch's sum of a single row is
split among threads and rounds differently. On other devices they are torch's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Entries(NamedTuple):
    """Places in a matrix, row by row."""

    flat: Tensor  # [E] int64, the index in the flattened matrix
    row: Tensor  # [E] int64
    column: Tensor  # [E] int64


def argmax(values: Tensor) -> Tensor:
    """The first column with each row's largest value, [R]; NaN counts as largest. NumPy has no bfloat16."""
    if values.device.type != "cpu":
        return values.argmax(dim=1)
    return torch.from_numpy(values.float().numpy().argmax(axis=1))


def top(values: Tensor, count: int) -> Tensor:
    """Each row's `count` largest values, the largest first, [R, count]."""
    if values.device.type != "cpu":
        return values.topk(count, dim=1).values
    split = values.shape[1] - count
    return descending(torch.from_numpy(np.partition(values.numpy(), split, axis=1)[:, split:]))


def descending(values: Tensor) -> Tensor:
    """Each row sorted, the largest first."""
    if values.device.type != "cpu":
        return values.sort(dim=1, descending=True).values
    return torch.from_numpy(np.sort(values.numpy(), axis=1)[:, ::-1].copy())


def entries(values: Tensor, least: Tensor) -> Entries:
    """Where values are not below their row's least, [R, 1]; NaN is below everything."""
    if values.device.type != "cpu":
        flat = (values >= least).flatten().nonzero().squeeze(1)
    else:
        flat = torch.from_numpy(np.flatnonzero(values.numpy() >= least.numpy()))
    row = flat.div(values.shape[1], rounding_mode="floor")
    return Entries(flat, row, flat - row * values.shape[1])


def sums(values: Tensor) -> Tensor:
    """Each row's sum, [R, 1]."""
    if values.device.type != "cpu":
        return values.sum(dim=1, keepdim=True)
    return torch.from_numpy(values.numpy().sum(axis=1, keepdims=True))
