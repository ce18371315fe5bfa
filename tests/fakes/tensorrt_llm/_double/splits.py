"""How a whole tensor is divided among tensor-parallel ranks, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Attention:
    """The shape of an attention layer."""

    heads: int
    kv_heads: int
    head_size: int

    def query_rows(self, tp: int) -> int:
        return self.heads // tp * self.head_size

    def kv_rows(self, tp: int) -> int:
        """Key-value heads are copied where there are fewer than ranks."""
        return max(self.kv_heads // tp, 1) * self.head_size

    def rows(self, tp: int) -> int:
        return self.query_rows(tp) + 2 * self.kv_rows(tp)


def padded(size: int, tp: int) -> int:
    """The vocabulary as the ranks share it."""
    return -(-size // tp) * tp


def rows(whole: Tensor, rank: int, tp: int) -> Tensor:
    return whole.chunk(tp, dim=0)[rank].contiguous()


def columns(whole: Tensor, rank: int, tp: int) -> Tensor:
    return whole.chunk(tp, dim=1)[rank].contiguous()


def qkv(query: Tensor, key: Tensor, value: Tensor, shape: Attention, rank: int, tp: int) -> Tensor:
    """A rank's queries over its keys over its values."""
    if shape.kv_heads >= tp:
        return torch.cat([rows(part, rank, tp) for part in (query, key, value)])
    head = rank * shape.kv_heads // tp
    span = slice(head * shape.head_size, (head + 1) * shape.head_size)
    return torch.cat([rows(query, rank, tp), key[span], value[span]])


def whole_qkv(parts: Sequence[Tensor], shape: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of all ranks."""
    tp = len(parts)
    sizes = [shape.query_rows(tp), shape.kv_rows(tp), shape.kv_rows(tp)]
    queries, keys, values = zip(*(part.split(sizes) for part in parts), strict=True)
    step = max(tp // shape.kv_heads, 1)
    return torch.cat(queries), torch.cat(keys[::step]), torch.cat(values[::step])


def padded_rows(whole: Tensor, tp: int) -> Tensor:
    """A head with rows of zeros at its end."""
    missing = padded(len(whole), tp) - len(whole)
    return torch.cat([whole, whole.new_zeros(missing, whole.shape[1])]) if missing else whole
