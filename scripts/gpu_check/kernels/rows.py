"""Random rows of logits, with all that `choose_token` takes beside them, and how close its numbers have to be."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

ATOL, RTOL = 4e-6, 1e-6
"""Of log-probabilities, which both sides compute in float32 whatever the logits' type, in other orders: a few roundings
of numbers up to 20, and one of what is larger."""


class Rows(NamedTuple):
    """The arguments of `choose_token` that are tensors, in order."""

    logits: Tensor
    seeds: Tensor
    positions: Tensor
    choices: Tensor
    noisy: Tensor
    wanted: Tensor

    def on(self, device: torch.device) -> Rows:
        return Rows(*(item.to(device) for item in self))


def rows(logits: Tensor, *, vocabulary: int | None = None, seed: int = 1, **changed: list[int]) -> Rows:
    """Every other row without noise, and every third without a wanted token, unless told otherwise."""
    count, vocabulary = len(logits), vocabulary or logits.shape[1]
    generator = torch.Generator().manual_seed(seed)
    drawn = {
        "positions": torch.randint(0, 100_000, (count,), generator=generator).tolist(),
        "choices": torch.randint(0, 8, (count,), generator=generator).tolist(),
        "noisy": [(row + 1) % 2 for row in range(count)],
        "wanted": [-1 if row % 3 == 2 else (7 * row + vocabulary - 1) % vocabulary for row in range(count)],
    }
    seeds = changed.pop("seeds", None) or torch.randint(-(2**62), 2**62, (count,), generator=generator).tolist()
    narrow = {name: torch.tensor(values, dtype=torch.int32) for name, values in {**drawn, **changed}.items()}
    return Rows(logits.contiguous(), torch.tensor(seeds, dtype=torch.int64), **narrow)


def random_logits(rows: int, width: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of some spread, about a fifth of them masked."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, width, generator=generator)
    return logits.masked_fill(torch.rand(rows, width, generator=generator) < 0.2, -math.inf).to(dtype)
