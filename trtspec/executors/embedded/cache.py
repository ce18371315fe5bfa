"""Keys and values of all sequences, and the attention that reads them. Which slot is whose is `KVCache`'s matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from trtspec.decoding.kv_cache import SlotCopy
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.layout import PassLayout

_FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_PLAIN = [SDPBackend.MATH]
_LINE = 64
"""Bytes in a line of a CPU's cache."""


def slot_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Memory of one position: key and value of every layer."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class CachePool:
    """The tensors behind the block tables, one pair a layer, and one slot more that no table names."""

    def __init__(self, config: DecoderConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.scratch = slots
        """Where padding goes; no sequence's."""
        shape = (config.num_layers, slots + 1, config.num_kv_heads, config.head_dim)
        self.keys = zeros(shape, dtype, device)  # zeros, not empty: a masked NaN would still spread
        self.values = zeros(shape, dtype, device)

    def move(self, copies: Sequence[SlotCopy]) -> None:
        """Apply copies as if at once: all sources are read before any destination is written."""
        if copies:
            sources = torch.tensor([copy.source for copy in copies], device=self.keys.device)
            destinations = torch.tensor([copy.destination for copy in copies], device=self.keys.device)
            self.keys[:, destinations] = self.keys[:, sources]
            self.values[:, destinations] = self.values[:, sources]


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU, memory that nobody has touched costs nothing, unlike PyTorch's own, and begins with a line."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + _LINE, np.uint8)
    skipped = -raw.ctypes.data % _LINE
    return torch.from_numpy(raw[skipped : skipped + size]).view(dtype).view(shape)


class PagedAttention:
    """The attention of one pass over a pool.

    A key or value that is not finite spoils all of its own sequence's queries, masked or not; other rows never see it.
    """

    def __init__(self, pool: CachePool, layout: PassLayout, heads: int) -> None:
        self._pool = pool
        self._layout = layout
        shared = heads // pool.keys.shape[2]
        self._masks = [_mask(group.visible, pool.keys.dtype).repeat(1, 1, shared, 1) for group in layout.groups]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store the new keys and values, then attend group by group; [T, heads, D] in and out."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        keys[self._layout.slots] = key
        values[self._layout.slots] = value
        mixed = torch.empty_like(query)
        for group, mask in zip(self._layout.groups, self._masks, strict=True):
            mixed[group.queries] = _attend(query[group.queries], keys[group.context], values[group.context], mask)
        return mixed


@contextmanager
def attending(pool: CachePool, layout: PassLayout, heads: int) -> Iterator[PagedAttention]:
    """The attention of one pass, with the kernels that its device and type ask for."""
    device, dtype = pool.keys.device, pool.keys.dtype
    # On a GPU, fused float32 kernels build products of TensorFloat-32 ones; the plain ones are IEEE throughout.
    plain = device.type == "cuda" and dtype is torch.float32
    with sdpa_kernel(_PLAIN if plain else _FUSED):
        yield PagedAttention(pool, layout, heads)


def _mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where a key is seen, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, -math.inf)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """[B, Q, heads, D] over [B, C, kv_heads, D]. Heads that share keys become further queries: nothing is repeated."""
    rows, queries, heads, width = query.shape
    kv_heads = key.shape[2]
    shared = heads // kv_heads
    stacked = query.view(rows, queries, kv_heads, shared, width).permute(0, 2, 3, 1, 4)
    mixed = scaled_dot_product_attention(
        stacked.reshape(rows, kv_heads, shared * queries, width),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
    )
    mixed = mixed.view(rows, kv_heads, shared, queries, width).permute(0, 3, 1, 2, 4)
    return mixed.reshape(rows, queries, heads, width)
