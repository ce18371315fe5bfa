"""Tensors of a TensorRT-LLM checkpoint that are made of a drafter's: names, shapes, and each rank's share.

The layouts are those of TensorRT-LLM's own converters (models/medusa/weight.py, models/eagle/weight.py): a column
linear layer is split by its rows, a row linear layer by its columns, and a vocabulary is padded to a multiple of the
ranks. Of a gated MLP, `fc` is what passes the activation, and `gate` what it is multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Shape = tuple[int, ...]
ROWS, COLUMNS = 0, 1
"""What is divided among the ranks."""


@dataclass(frozen=True, slots=True)
class Part:
    """A whole tensor of a drafter or a target, padded with zeros at its end to `rows`."""

    shape: Shape
    read: Callable[[], Tensor] | None
    """None: all zeros."""
    rows: int

    def whole(self, dtype: torch.dtype) -> Tensor:
        padded = torch.zeros((self.rows, *self.shape[1:]), dtype=dtype)
        if self.read is not None:
            padded[: self.shape[0]] = self.read().to(dtype)
        return padded


@dataclass(frozen=True, slots=True)
class Added:
    """One tensor of the checkpoint: parts below each other, each divided first."""

    name: str
    parts: tuple[Part, ...]
    split: int | None = None
    """ROWS, COLUMNS, or None: every rank holds all of it."""

    def rank_shape(self, tp: int) -> Shape:
        """What a rank holds; every split is even, which plans see to."""
        first = self.parts[0].shape
        rows, rest = sum(part.rows for part in self.parts), list(first[1:])
        if self.split == ROWS:
            rows //= tp
        if self.split == COLUMNS:
            rest[0] //= tp
        return (rows, *rest)

    def rank_bytes(self, tp: int, itemsize: int) -> int:
        return prod(self.rank_shape(tp)) * itemsize

    def of_rank(self, rank: int, tp: int, dtype: torch.dtype) -> Tensor:
        """A rank's share."""
        shares = [self._share(part.whole(dtype), rank, tp) for part in self.parts]
        return torch.cat(shares).contiguous()

    def _share(self, whole: Tensor, rank: int, tp: int) -> Tensor:
        return whole if self.split is None else whole.chunk(tp, dim=self.split)[rank]


def padded_vocabulary(size: int, tp: int) -> int:
    """`pad_vocab_size` of tensorrt_llm._utils: the next multiple of the ranks."""
    return -(-size // tp) * tp
