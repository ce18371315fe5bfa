"""A decoder layer as one call into compiled code: between its kernels, threads must not find time to fall asleep."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.kernels.attention import Heads, PagedTokens, Pages, Rotation, attend
from trtspec.executors.embedded.kernels.compiling import serial
from trtspec.executors.embedded.kernels.products import (
    NONE,
    Floats,
    Matrix,
    added_into,
    floats_of,
    gated_into,
    normalised,
    product_into,
    room,
)
from trtspec.executors.embedded.weights import LayerWeights


class KernelLayer:
    """RMSNorm, rotary attention with grouped keys, SwiGLU (`model.Layers`) over padded rows."""

    def __init__(self, config: DecoderConfig, weights: LayerWeights[Matrix]) -> None:
        self._parts = _Parts(
            *(weights.qkv.values, weights.qkv.scales, floats_of(weights.qkv_bias)),
            *(weights.output.values, weights.output.scales),
            *(weights.gate_up.values, weights.gate_up.scales),
            *(weights.down.values, weights.down.scales),
            *(floats_of(weights.input_norm), floats_of(weights.post_norm)),
        )
        self._heads = Heads(
            config.num_heads,
            np.float32(1 / math.sqrt(config.head_dim)),
            floats_of(weights.query_norm),
            floats_of(weights.key_norm),
            np.float32(config.rms_norm_eps),
        )

    def run(self, x: Floats, read: Floats | None, rotation: Rotation, index: int, new: PagedTokens) -> Floats:
        """[padded, H] -> [padded, H]; attention reads `read` [padded, R] where that is not x normalised."""
        return _layer(x, _NOTHING if read is None else read, self._parts, self._heads, rotation, new.of(index))


class _Parts(NamedTuple):
    """The arrays of a layer's weights."""

    qkv: Any
    qkv_scales: Floats
    qkv_bias: Floats
    output: Any
    output_scales: Floats
    gate_up: Any
    gate_up_scales: Floats
    down: Any
    down_scales: Floats
    input_norm: Floats
    post_norm: Floats


_NOTHING = NONE.reshape(0, 0)


@serial
def _layer(x: Floats, read: Floats, parts: _Parts, heads: Heads, rotation: Rotation, pages: Pages) -> Floats:
    if not read.size:
        read = normalised(x, parts.input_norm, heads.epsilon) if parts.input_norm.size else x
    stacked = room(x.shape[0], parts.qkv.shape[0])
    product_into(read, parts.qkv, parts.qkv_scales, parts.qkv_bias, stacked)
    attended = room(x.shape[0], x.shape[1])
    added_into(x, attend(stacked, heads, rotation, pages), parts.output, parts.output_scales, attended)
    both = room(x.shape[0], parts.gate_up.shape[0])
    gated = room(x.shape[0], parts.down.shape[1])
    gated_into(normalised(attended, parts.post_norm, heads.epsilon), parts.gate_up, parts.gate_up_scales, both, gated)
    result = room(x.shape[0], x.shape[1])
    added_into(attended, gated, parts.down, parts.down_scales, result)
    return result
