"""Decoder layers as OpenVINO nodes over the flat tokens of a pass, with paged attention and a mask for draft trees.

Graphs are built from the packed weights whenever an engine opens: OpenVINO 2026.4 can neither write nor read its
paged attention (an exported model loses the operation's head counts), and building takes a tenth of compiling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import openvino as ov
import torch
from openvino import Node, PartialShape, Type, opset13
from openvino.op import Constant, Parameter, _PagedAttentionExtension
from torch import Tensor

from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.openvino.nodes import (
    constant,
    parameter,
    product,
    reshape,
    rms_norm,
    rotate,
    silu_gate,
    split,
)
from trtspec.executors.embedded.rope import RotaryTable
from trtspec.executors.embedded.weights import LayerWeights, Weight

TOKEN_IDS, POSITIONS, SCORED = "token_ids", "positions", "scored"
PAST_LENGTHS, QUERY_BEGINS = "past_lengths", "query_begins"
BLOCKS, BLOCK_BEGINS, LONGEST = "blocks", "block_begins", "longest_context"
TREE_MASK, TREE_MASK_BEGINS = "tree_mask", "tree_mask_begins"


def key_cache(layer: int) -> str:
    """Name of a layer's input that holds keys."""
    return f"key_cache.{layer}"


def value_cache(layer: int) -> str:
    return f"value_cache.{layer}"


class LayersGraph:
    """The layers of one graph and its inputs, whose names stand above. The weights must outlive what is compiled."""

    def __init__(self, config: DecoderConfig, positions: int) -> None:
        self._config = config
        rotary = RotaryTable(config, positions, torch.float32, torch.device("cpu"))
        self._rotation_tables = rotary.at(torch.arange(positions))
        vector = PartialShape([-1])
        self._inputs = {
            name: parameter(name, Type.i32, vector)
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
        self._inputs[LONGEST] = parameter(LONGEST, Type.i32, PartialShape([]))
        self._inputs[TREE_MASK] = parameter(TREE_MASK, Type.u8, vector)

    @property
    def token_ids(self) -> Parameter:
        return self._inputs[TOKEN_IDS]

    def run(self, x: Node, layers: Sequence[LayerWeights[Weight]], read: Node | None = None) -> Iterator[Node]:
        """What goes into each layer, from x [T, H] on, and what comes out of the last one.

        `read` [T, R] is what the first layer's attention reads, where that is not x.
        """
        cos, sin = self._rotation()
        for index, layer in enumerate(layers):
            yield x
            normalised = self.norm(x, layer.input_norm) if index or read is None else read
            x = opset13.add(x, self._attend(index, layer, normalised, cos, sin))
            gate_up = product(self.norm(x, layer.post_norm), layer.gate_up)
            x = opset13.add(x, product(silu_gate(gate_up, self._config.intermediate_size), layer.down))
        yield x

    def scored(self, x: Node) -> Node:
        """The scored places of [T, H], [S, H]."""
        return opset13.gather(x, self._inputs[SCORED], np.int32(0))

    def norm(self, x: Node, scale: Tensor | None) -> Node:
        """RMSNorm over the last dimension; a norm that the model lacks changes nothing."""
        return x if scale is None else rms_norm(x, scale, self._config.rms_norm_eps)

    def model(self, outputs: Sequence[Node], *more_inputs: Parameter) -> ov.Model:
        """The graph, whole."""
        return ov.Model([opset13.result(item) for item in outputs], [*self._inputs.values(), *more_inputs], "decoder")

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
        return reshape(rotate(self.norm(parts, norm), cos, sin, width), -1, heads * width).output(0)

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
            parameter(name, Type.dynamic, PartialShape.dynamic(4)) for name in (key_cache(index), value_cache(index))
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


def _scalar(kind: Type, value: float) -> Constant:
    return Constant(kind, ov.Shape([]), [value])


def _empty(kind: Type, *shape: int) -> Constant:
    return Constant(kind, ov.Shape(list(shape) or [0]), [])


def _output(item: Node | ov.Output) -> ov.Output:
    return item.output(0) if isinstance(item, Node) else item
