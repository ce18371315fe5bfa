"""The networks of drafters over the flat tokens of a pass. Attention is an argument: it owns the cache.

Token and state of each place meet in one of three ways (`DrafterConfig`): a whole model reads the token alone; EAGLE
and MTP fuse the two into what goes into the first layer (Li et al. 2024, EAGLE, section 3.1; DeepSeek-AI 2024,
DeepSeek-V3, section 2.2); in EAGLE-3 the first layer's attention reads both (Li et al. 2025, section 3.1). Medusa's
heads read the state alone (Cai et al. 2024, section 2.1.1).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_weights import HeadsWeights, NetworkWeights
from trtspec.executors.embedded.model import A, LayerStack, Products
from trtspec.executors.embedded.weights import M


class Drafted(NamedTuple):
    """What a module makes of the scored places of a pass."""

    logits: Tensor  # [S, D]
    states: Tensor  # [S, H], handed on


class Places(Protocol):
    """What a model reads of a pass's layout."""

    @property
    def token_ids(self) -> Tensor: ...

    @property
    def positions(self) -> Tensor: ...

    @property
    def scored(self) -> Tensor: ...


class DrafterModel(Generic[A, M]):
    """One module of a drafter, with the embedding and the head that all of them share."""

    def __init__(
        self, config: DrafterConfig, weights: NetworkWeights[M], module: int, layers: LayerStack[A, M]
    ) -> None:
        self._config = config
        self._weights = weights
        self._module = weights.modules[module]
        self._layers = layers
        self._head = layers.first(weights.head, config.vocabulary_size)
        self.attention_heads = config.caches[module].num_heads

    def states(self, features: Tensor) -> Tensor:
        """[T, F] -> [T, H]."""
        return features if self._weights.fusion is None else self._layers.product(features, self._weights.fusion)

    def run(self, layout: Places, states: Tensor | None, attention: A) -> Drafted:
        """Logits and states of a pass; `states` is [T, H], None for a whole model."""
        first = self._first(self._layers.rows(self._weights.embedding, layout.token_ids), states)
        through = self._layers.run(first.x, layout.positions, attention, first.read)
        last = deque(through, maxlen=1).pop()[layout.scored]
        normalised = self._layers.norm(last, self._module.norm)
        handed_on = normalised if self._config.normalised_states else last
        return Drafted(self._layers.product(normalised, self._head), handed_on)

    def _first(self, tokens: Tensor, states: Tensor | None) -> _First:
        if states is None:
            return _First(tokens)
        module = self._module
        state = self._layers.norm(states, module.state_norm)
        both = torch.cat([self._layers.norm(tokens, module.token_norm), state], dim=1)
        if module.fuse is None:
            return _First(state if self._config.norm_before_residual else states, both)
        return _First(self._layers.product(both, module.fuse, module.fuse_bias))


class _First(NamedTuple):
    """What goes into the first layer, and what its attention reads where that is not the same."""

    x: Tensor  # [T, H]
    read: Tensor | None = None  # [T, 2 H]


class HeadsModel(Generic[M]):
    """Heads that guess several tokens at once."""

    def __init__(self, config: DrafterConfig, weights: HeadsWeights[M], products: Products[M]) -> None:
        self._blocks = weights.blocks
        self._outputs = [products.first(output, config.vocabulary_size) for output in weights.outputs]
        self._product = products.product

    def run(self, states: Tensor) -> Tensor:
        """[B, H] -> [B, heads, D]."""
        guesses = [states] * len(self._blocks)
        for head, blocks in enumerate(self._blocks):
            for block in blocks:
                guesses[head] = guesses[head] + silu(self._product(guesses[head], block.weight, block.bias))
        if len(self._outputs) == 1:  # all heads read it at once
            flat = self._product(torch.cat(guesses), self._outputs[0])
            return flat.view(len(guesses), len(states), -1).transpose(0, 1)
        return torch.stack([self._product(x, output) for x, output in zip(guesses, self._outputs, strict=True)], dim=1)
