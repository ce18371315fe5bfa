"""The target as one OpenVINO graph."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset13

from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.openvino.graph import LayersGraph
from trtspec.executors.embedded.openvino.nodes import product, rows
from trtspec.executors.embedded.weights import DecoderWeights, Weight, first_rows

LOGITS, FEATURES = 0, 1
"""Outputs: [S, V] of the scored places and, where features are asked for, [T, F] of all."""


def decoder_graph(
    config: DecoderConfig,
    weights: DecoderWeights[Weight],
    positions: int,
    vocabulary_size: int,
    features: Sequence[int],
) -> ov.Model:
    """Embedding, layers and head. The weights must outlive what is compiled from it."""
    layers = LayersGraph(config, positions)
    *states, last = layers.run(rows(weights.embedding, layers.token_ids), weights.layers)
    hidden = layers.norm(layers.scored(last), weights.norm)
    outputs = [product(hidden, first_rows(weights.head, vocabulary_size))]
    if features:
        read = {LAST_HIDDEN: layers.norm(last, weights.norm), **dict(enumerate([*states, last]))}
        outputs.append(opset13.concat([read[index] for index in features], 1))
    return layers.model(outputs)
