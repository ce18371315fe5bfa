"""A decoder layer as one call into compiled code: between its kernels, threads must not find time to fall asleep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.kernels.attention import Ints, PagedTokens, attend
from trtspec.executors.embedded.kernels.compiling import serial
from trtspec.executors.embedded.kernels.products import (
    Floats,
    Matrix,
    added_into,
    floats_of,
    gated_into,
    normalised,
    product_into,
)
from trtspec.executors.embedded.weights import LayerWeights


class KernelLayer:
    """RMSNorm, rotary attention with grouped keys, SwiGLU (`model.Layers`) over padded rows."""

    def __init__(self, config: DecoderConfig, weights: LayerWeights[Matrix]) -> None:
        self._weights = (
            *(weights.qkv.values, weights.qkv.scales, floats_of(weights.qkv_bias)),
            *(weights.output.values, weights.output.scales),
            *(weights.gate_up.values, weights.gate_up.scales),
            *(weights.down.values, weights.down.scales),
        )
        self._norms = (
            *(floats_of(weights.input_norm), floats_of(weights.post_norm)),
            *(floats_of(weights.query_norm), floats_of(weights.key_norm), np.float32(config.rms_norm_eps)),
        )
        self._heads = config.num_heads
        self._scale = np.float32(1 / math.sqrt(config.head_dim))

    def run(
        self, x: Floats, read: Floats | None, rotation: tuple[Floats, Floats], index: int, new: PagedTokens
    ) -> Floats:
        """[padded, H] -> [padded, H]; attention reads `read` [padded, R] where that is not x normalised."""
        keys, values = new.pool[index]
        return _layer(
            x, _NOTHING if read is None else read, *self._weights, *self._norms, self._heads, self._scale, *rotation,
            keys, values, new.rows, new.past, new.begins, new.blocks, new.block_begins, new.mask, new.mask_begins,
            new.longest,
        )  # fmt: skip


_NOTHING = np.zeros((0, 0), np.float32)


@serial
def _layer(
    x: Floats,
    read: Floats,
    qkv: Any,
    qkv_scales: Floats,
    qkv_bias: Floats,
    output: Any,
    output_scales: Floats,
    gate_up: Any,
    gate_up_scales: Floats,
    down: Any,
    down_scales: Floats,
    input_norm: Floats,
    post_norm: Floats,
    query_norm: Floats,
    key_norm: Floats,
    epsilon: np.float32,
    heads: int,
    scale: np.float32,
    cos: Floats,
    sin: Floats,
    keys: Floats,
    values: Floats,
    rows: Ints,
    past: Ints,
    begins: Ints,
    blocks: Ints,
    block_begins: Ints,
    mask: Any,
    mask_begins: Ints,
    longest: int,
) -> Floats:
    if not read.size:
        read = normalised(x, input_norm, epsilon) if input_norm.size else x
    stacked = np.empty((x.shape[0], qkv.shape[0]), np.float32)
    product_into(read, qkv, qkv_scales, qkv_bias, stacked)
    mixed = attend(
        stacked, heads, scale, query_norm, key_norm, epsilon, cos, sin, keys, values, rows, past, begins, blocks,
        block_begins, mask, mask_begins, longest,
    )  # fmt: skip
    attended = np.empty_like(x)
    added_into(x, mixed, output, output_scales, attended)
    both = np.empty((x.shape[0], gate_up.shape[0]), np.float32)
    gated = np.empty((x.shape[0], down.shape[1]), np.float32)
    gated_into(normalised(attended, post_norm, epsilon), gate_up, gate_up_scales, both, gated)
    result = np.empty_like(x)
    added_into(attended, gated, down, down_scales, result)
    return result
