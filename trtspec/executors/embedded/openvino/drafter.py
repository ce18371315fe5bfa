"""Runs compiled drafters pass by pass."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter, DraftOutput, DraftPlan
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_weights import DrafterWeights, HeadsWeights, NetworkWeights
from trtspec.executors.embedded.kernels.products import MOST_ROWS, fits
from trtspec.executors.embedded.openvino.compiled import Compiled, CompiledLayers, Settings
from trtspec.executors.embedded.openvino.drafter_graph import (
    LOGITS,
    NEXT_STATES,
    STATES,
    fusion_graph,
    heads_graph,
    network_graph,
)
from trtspec.executors.embedded.openvino.few_rows import FewDrafterRows, FewHeadsRows, network_widths
from trtspec.executors.embedded.weights import Weight


def openvino_drafter(
    config: DrafterConfig, weights: DrafterWeights, positions: int, vocabulary_size: int, settings: Settings
) -> Drafter:
    """All networks of a drafter beside a target that goes so far."""
    if isinstance(weights, HeadsWeights):
        heads = OpenVinoHeads(config, weights, settings)
        return Drafter(heads=heads, vocabulary_size=vocabulary_size, features=config.features)
    longest = config.positions(positions)
    modules = tuple(OpenVinoNetwork(config, weights, index, longest, settings) for index in range(config.modules))
    return Drafter(modules, vocabulary_size=vocabulary_size, features=config.features)


class OpenVinoNetwork:
    """Implements `DraftNetwork`."""

    def __init__(
        self, config: DrafterConfig, weights: NetworkWeights[Weight], module: int, positions: int, settings: Settings
    ) -> None:
        self.token_ids = weights.token_ids
        self.positions = positions
        self._weights = weights  # compiled products pack their matrices when first used
        model = network_graph(config, weights, module, positions)
        known = fits(*network_widths(config.caches[module], weights))
        self._few = FewDrafterRows(config, weights, module, positions, settings.threads) if known else None
        self._layers = CompiledLayers(model, config.caches[module], settings, self._few)
        self._fusion = None if weights.fusion is None else Compiled(fusion_graph(weights.fusion), settings)

    def states(self, features: Tensor) -> Tensor:
        if self._fusion is None:
            return features
        if self._few is not None and len(features) <= MOST_ROWS:
            return self._few.states(features)
        return self._fusion.run({STATES: _array(features)})[0].clone()

    def forward(self, plan: DraftPlan, draft: Draft, states: Tensor | None) -> DraftOutput:
        outputs = self._layers.run(plan, draft, {} if states is None else {STATES: _array(states)})
        return DraftOutput(outputs[LOGITS], outputs[NEXT_STATES].clone())


class OpenVinoHeads:
    """Implements `HeadsNetwork`."""

    def __init__(self, config: DrafterConfig, weights: HeadsWeights[Weight], settings: Settings) -> None:
        self.token_ids = weights.token_ids
        self._weights = weights  # compiled products pack their matrices when first used
        self._compiled = Compiled(heads_graph(config, weights), settings)
        self._heads = len(weights.blocks)
        known = fits(len(weights.blocks[0][0].bias))
        self._few = FewHeadsRows(config, weights, settings.threads) if known else None

    def forward(self, features: Tensor) -> Tensor:
        if self._few is not None and len(features) * self._heads <= MOST_ROWS:
            return self._few.run(features)
        flat = torch.cat(self._compiled.run({STATES: _array(features)}))
        return flat.view(-1, len(features), flat.shape[1]).transpose(0, 1)


def _array(tensor: Tensor) -> NDArray[np.generic]:
    """The tensor's memory as a graph reads it: in order, without gaps."""
    return tensor.contiguous().numpy()
