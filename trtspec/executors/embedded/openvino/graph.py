"""The decoder as one OpenVINO graph over the flat tokens of a pass, with paged attention and a mask for draft trees.

The graph is built from the packed weights whenever an engine opens: OpenVINO 2026.4 can neither write nor read its
paged attention (an exported model loses the operation's head counts), and building takes a tenth of compiling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import openvino as ov
import torch
from openvino import Node, PartialShape, Type, opset13
from openvino.op import Constant, Parameter, _PagedAttentionExtension
from torch import Tensor

from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.openvino.nodes import (
    constant,
    product,
    reshape,
    rms_norm,
    rotate,
    rows,
    silu_gate,
    split,
)
from trtspec.executors.embedded.rope import RotaryTable
from trtspec.executors.embedded.weights import DecoderWeights, LayerWeights, Weight, first_rows

TOKEN_IDS, POSITIONS, SCORED = "token_ids", "positions", "scored"
PAST_LENGTHS, QUERY_BEGINS = "past_lengths", "query_begins"
BLOCKS, BLOCK_BEGINS, LONGEST = "blocks", "block_begins", "longest_context"
TREE_MASK, TREE_MASK_BEGINS = "tree_mask", "tree_mask_begins"
LOGITS, FEATURES = 0, 1
"""Outputs: [S, V] of the scored places and, where features are asked for, [T, F] of all."""


def key_cache(layer: int) -> str:
    """Name of a layer's input that holds keys."""
    return f"key_cache.{layer}"


def value_cache(layer: int) -> str:
    return f"value_cache.{layer}"


class DecoderGraph:
    """Builds the graph of one decoder. The weights must outlive what is compiled from it."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights[Weight],
        positions: int,
        vocabulary_size: int,
        features: Sequence[int] = (),
    ) -> None:
        self._config = config
        self._features = features
        self._weights = weights
        self._vocabulary_size = vocabulary_size
        rotary = RotaryTable(config, positions, torch.float32, torch.device("cpu"))
        self._rotation_tables = rotary.at(torch.arange(positions))
        vector = PartialShape([-1])
        self._inputs = {
            name: _parameter(name, Type.i32, vector)
            for name in (
                TOKEN_IDS,
                POSITIONS,
                SCORED,
                PAST_LENGTHS,
                QUERY_BEGINS,
                BLOCKS,
                BLOCK_BEGINS,
                TREE_MASK_BEGINS,
            )
        }
        self._inputs[LONGEST] = _parameter(LONGEST, Type.i32, PartialShape([]))
        self._inputs[TREE_MASK] = _parameter(TREE_MASK, Type.u8, vector)

    def build(self) -> ov.Model:
        """The whole decoder; inputs and outputs as named above."""
        config, weights = self._config, self._weights
        cos, sin = self._rotation()
        states: dict[int, Node] = {}
        x: Node = rows(weights.embedding, self._inputs[TOKEN_IDS])
        for index, layer in enumerate(weights.layers):
            states[index] = x
            x = opset13.add(x, self._attend(index, layer, self._norm(x, layer.input_norm), cos, sin))
            gate_up = product(self._norm(x, layer.post_norm), layer.gate_up)
            x = opset13.add(x, product(silu_gate(gate_up, config.intermediate_size), layer.down))
        hidden = self._norm(opset13.gather(x, self._inputs[SCORED], np.int32(0)), weights.norm)
        logits = product(hidden, first_rows(weights.head, self._vocabulary_size))
        results = [opset13.result(logits)]
        if self._features:
            if LAST_HIDDEN in self._features:
                states[LAST_HIDDEN] = self._norm(x, weights.norm)
            results.append(opset13.result(opset13.concat([states[index] for index in self._features], 1)))
        return ov.Model(results, list(self._inputs.values()), "decoder")

    def _attend(self, index: int, layer: LayerWeights[Weight], x: Node, cos: Node, sin: Node) -> Node:
        config = self._config
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        stacked = product(x, layer.qkv, layer.qkv_bias)
        query, key, value = split(stacked, [heads * width, kv_heads * width, kv_heads * width])
        query = self._turned(query, heads, layer.query_norm, cos, sin)
        key = self._turned(key, kv_heads, layer.key_norm, cos, sin)
        return product(self._paged_attention(index, [query, key, value]), layer.output)

    def _turned(self, x: ov.Output, heads: int, norm: Tensor | None, cos: Node, sin: Node) -> ov.Output:
        """Heads normalised, where the model has norms for them, and rotated; [T, heads * D] in and out."""
        width = self._config.head_dim
        parts = reshape(x, -1, heads, 1, width)
        parts = parts if norm is None else self._norm(parts, norm)
        return reshape(rotate(parts, cos, sin, width), -1, heads * width).output(0)

    def _norm(self, x: Node, scale: Tensor) -> Node:
        return rms_norm(x, scale, self._config.rms_norm_eps)

    def _rotation(self) -> tuple[Node, Node]:
        """Cosine and sine at the tokens' positions, [T, 1, 1, D] each."""
        tables = (constant(table) for table in self._rotation_tables)
        picked = (opset13.gather(table, self._inputs[POSITIONS], np.int32(0)) for table in tables)
        cos, sin = (reshape(part, -1, 1, 1, self._config.head_dim) for part in picked)
        return cos, sin

    def _paged_attention(self, index: int, new: Sequence[Node | ov.Output]) -> ov.Output:
        """Stores new keys and values, and attends: [T, heads * D], twice [T, kv_heads * D] -> [T, heads * D]."""
        config = self._config
        caches = [
            _parameter(name, Type.dynamic, PartialShape.dynamic(4)) for name in (key_cache(index), value_cache(index))
        ]
        self._inputs.update({cache.get_friendly_name(): cache for cache in caches})
        batch = [self._inputs[name] for name in (PAST_LENGTHS, QUERY_BEGINS, BLOCKS, BLOCK_BEGINS)]
        shape_of_heads = [_scalar(Type.f32, 1.0 / math.sqrt(config.head_dim)), _scalar(Type.i32, 0), _empty(Type.f32)]
        tree = [self._inputs[TREE_MASK], self._inputs[TREE_MASK_BEGINS]]
        arguments = [*new, *caches, *batch, *shape_of_heads, self._inputs[LONGEST], *_unused_features(), *tree]
        attention = _PagedAttentionExtension([_output(item) for item in arguments])
        facts = attention.get_rt_info()
        facts["num_k_heads"] = facts["num_v_heads"] = config.num_kv_heads
        facts["k_head_size"] = facts["v_head_size"] = config.head_dim
        return attention.output(0)


def _unused_features() -> list[Constant]:
    """What the operation could also do: scores for eviction, rotated blocks, sparse attention, sinks, token types."""
    return [
        _empty(Type.i32),  # score aggregation window
        _empty(Type.i32),  # rotated block indices
        _empty(Type.i32, 0, 0),  # rotation deltas
        _empty(Type.f32, 0, 0),  # rotation table
        _empty(Type.f32),  # sparse attention: threshold, block size, stride
        _scalar(Type.i32, 64),
        _scalar(Type.i32, 8),
        _empty(Type.f32, 0, 0, 0, 0),  # sinks
        _scalar(Type.i32, 0),  # adaptive eviction: start, sizes, indices, begins
        _empty(Type.i32),
        _empty(Type.i32),
        _empty(Type.i32),
        _empty(Type.i32),  # token types
    ]


def _parameter(name: str, kind: Type, shape: PartialShape) -> Parameter:
    parameter = opset13.parameter(shape, kind)
    parameter.set_friendly_name(name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _scalar(kind: Type, value: float) -> Constant:
    return Constant(kind, ov.Shape([]), [value])


def _empty(kind: Type, *shape: int) -> Constant:
    return Constant(kind, ov.Shape(list(shape) or [0]), [])


def _output(item: Node | ov.Output) -> ov.Output:
    return item.output(0) if isinstance(item, Node) else item
