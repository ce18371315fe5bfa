"""The networks of drafters as OpenVINO graphs; the eager twins in `drafter_model` say what they compute, and why.

The weights must outlive what is compiled from a graph.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import openvino as ov
from openvino import Node, PartialShape, Type, opset13

from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_weights import HeadsWeights, ModuleWeights, NetworkWeights
from trtspec.executors.embedded.openvino.graph import LayersGraph
from trtspec.executors.embedded.openvino.nodes import parameter, product, rows
from trtspec.executors.embedded.weights import Weight, first_rows

STATES = "states"
"""Input: [T, H] float32, what each token is fed with; of heads [B, H], of a fusion the features [T, F]."""
LOGITS, NEXT_STATES = 0, 1
"""Outputs: [S, D] and [S, H]."""


def network_graph(config: DrafterConfig, weights: NetworkWeights[Weight], module: int, positions: int) -> ov.Model:
    """One module of a drafter, with embedding and head."""
    own = weights.modules[module]
    decoder = config.caches[module]
    layers = LayersGraph(decoder, positions)
    tokens = rows(weights.embedding, layers.token_ids)
    states = [parameter(STATES, Type.f32, PartialShape([-1, decoder.hidden_size]))] if config.reads_states else []
    first = _first(config, own, layers, tokens, *states)
    last = layers.scored(deque(layers.run(first.x, own.layers, first.read), maxlen=1).pop())
    normalised = layers.norm(last, own.norm)
    logits = product(normalised, first_rows(weights.head, config.vocabulary_size))
    return layers.model([logits, normalised if config.normalised_states else last], *states)


class _First(NamedTuple):
    """What goes into the first layer, and what its attention reads where that is not the same."""

    x: Node
    read: Node | None = None


def _first(
    config: DrafterConfig, module: ModuleWeights[Weight], layers: LayersGraph, tokens: Node, states: Node | None = None
) -> _First:
    if states is None:
        return _First(tokens)
    state = layers.norm(states, module.state_norm)
    both = opset13.concat([layers.norm(tokens, module.token_norm), state], 1)
    if module.fuse is None:
        return _First(state if config.norm_before_residual else states, both)
    return _First(product(both, module.fuse, module.fuse_bias))


def fusion_graph(fusion: Weight) -> ov.Model:
    """From the target's features to states."""
    features = parameter(STATES, Type.f32, PartialShape([-1, -1]))
    return ov.Model([opset13.result(product(features, fusion))], [features], "fusion")


def heads_graph(config: DrafterConfig, weights: HeadsWeights[Weight]) -> ov.Model:
    """All heads: one output [heads * B, D] where they share the last product, else [B, D] for each."""
    states = parameter(STATES, Type.f32, PartialShape([-1, -1]))
    guesses: list[Node] = []
    for blocks in weights.blocks:
        x: Node = states
        for block in blocks:
            x = opset13.add(x, opset13.swish(product(x, block.weight, block.bias)))
        guesses.append(x)
    if len(weights.outputs) == 1:
        guesses = [opset13.concat(guesses, 0)]
    outputs = [first_rows(item, config.vocabulary_size) for item in weights.outputs]
    results = [opset13.result(product(x, output)) for x, output in zip(guesses, outputs, strict=True)]
    return ov.Model(results, [states], "heads")
