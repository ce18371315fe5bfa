"""The drafters as modules that learn: what each guesses ahead of every position.

All answer one question, so that loss and measuring know none of them: `forward(batch, depth)` gives, for d = 0, 1, ...,
what the output head reads at each position to guess the token d + 2 places further on, those before it known. Where a
drafter goes on from its own states, these are used and not the target's (training-time test of EAGLE-3, Li et al.
2025). Parameters bear the names of `trtspec.executors.embedded.drafter_weights`, after the network's prefix.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad, silu

from builders.training.examples import Batch
from builders.training.layers import Layer, Memory, Rotations, normalised
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FUSED_FEATURES, HEADS, TOKENS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import module_name


class Network(nn.Module):
    """A drafter of some configuration; the shared embedding is frozen."""

    prefix = ""

    def forward(self, batch: Batch, depth: int) -> list[Tensor]:
        """[B, L, H] for each of the first so many depths."""
        raise TypeError(f"{type(self).__name__} must say what it guesses")


class FeatureNetwork(Network):
    """EAGLE and MTP: layers over the fusion of a token's embedding and the state before it."""

    prefix = module_name(0, "")

    def __init__(self, config: DrafterConfig, shared: Tensor, columns: slice) -> None:
        super().__init__()
        decoder = config.decoder
        assert decoder is not None
        width, norms = decoder.hidden_size, config.normalised_inputs
        self._config = config
        self._eps = decoder.rms_norm_eps
        self._columns = columns
        self.fuse = nn.Parameter(self._fusion(width, len(config.features)))
        self.token_norm = nn.Parameter(torch.ones(width)) if norms else None
        self.state_norm = nn.Parameter(torch.ones(width)) if norms else None
        self.layers = nn.ModuleList(self._layer(decoder, index) for index in range(decoder.num_layers))
        self.norm = nn.Parameter(torch.ones(width)) if config.final_norm else None
        self._rotations = Rotations(decoder)
        self.register_buffer("_embedding", shared, persistent=False)

    def _fusion(self, width: int, states: int) -> Tensor:
        """At first the state passes, and the embedding does not."""
        return torch.cat([torch.zeros(width, width), torch.eye(width)], dim=1)

    def _layer(self, decoder: DecoderConfig, index: int) -> Layer:
        return Layer(decoder, input_norm=index > 0 or self._config.first_input_norm)

    def forward(self, batch: Batch, depth: int) -> list[Tensor]:
        state = self._start(batch.features[..., self._columns])
        memories: list[Memory] = [[] for _ in self.layers]
        guesses = []
        for step in range(depth):
            tokens = embedding(shifted(batch.tokens, step + 1), cast(Tensor, self._embedding))
            rotation = self._rotations(state.shape[1], step, state.device)
            x, inputs = self._enter(tokens, state)
            for index, (layer, memory) in enumerate(zip(layers_of(self), memories, strict=True)):
                x = layer(x, layer.read(x) if index else inputs, rotation, memory)
            guesses.append(normalised(x, self.norm, self._eps))
            state = guesses[-1] if self._config.normalised_states else x
        return guesses

    def _start(self, features: Tensor) -> Tensor:
        """The first states."""
        return features

    def _enter(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer's residual, and what its attention reads."""
        sides = [normalised(tokens, self.token_norm, self._eps), normalised(state, self.state_norm, self._eps)]
        x = linear(torch.cat(sides, dim=-1), self.fuse)
        return x, layers_of(self)[0].read(x)


class FusedNetwork(FeatureNetwork):
    """EAGLE-3: states are fused from several of the target's, and attention reads embedding and state side by side."""

    def _fusion(self, width: int, states: int) -> Tensor:
        """At first the highest of the target's states passes."""
        return torch.cat([torch.zeros(width, (states - 1) * width), torch.eye(width)], dim=1)

    def _layer(self, decoder: DecoderConfig, index: int) -> Layer:
        return Layer(decoder, state_norm=True)

    def _start(self, features: Tensor) -> Tensor:
        return linear(features, self.fuse)

    def _enter(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        first = layers_of(self)[0]
        known = normalised(state, first.state_norm, self._eps)
        return known if self._config.norm_before_residual else state, torch.cat([first.read(tokens), known], dim=-1)


class HeadsNetwork(Network):
    """Medusa: one stack of residual blocks for each depth, over the target's last state alone."""

    def __init__(self, config: DrafterConfig, width: int, columns: slice) -> None:
        super().__init__()
        self._columns = columns
        self.heads = nn.ModuleList(Head(width, config.blocks) for _ in range(config.modules))

    def forward(self, batch: Batch, depth: int) -> list[Tensor]:
        return [head(batch.features[..., self._columns]) for head in self.heads[:depth]]


class Head(nn.Module):
    """Residual blocks, x + SiLU(W x + b); at first they add nothing."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + silu(block(x))
        return x


class TokenNetwork(Network):
    """A draft model: a small decoder that knows the text alone, so that every depth is the next token."""

    def __init__(self, config: DrafterConfig, shared: Tensor) -> None:
        super().__init__()
        decoder = config.decoder
        assert decoder is not None
        self._eps = decoder.rms_norm_eps
        self.layers = nn.ModuleList(Layer(decoder) for _ in range(decoder.num_layers))
        self.norm = nn.Parameter(torch.ones(decoder.hidden_size))
        self._rotations = Rotations(decoder)
        self.register_buffer("_embedding", shared, persistent=False)

    def forward(self, batch: Batch, depth: int) -> list[Tensor]:
        x = embedding(batch.tokens, cast(Tensor, self._embedding))
        rotation = self._rotations(x.shape[1], 0, x.device)
        for layer in layers_of(self):
            x = layer(x, layer.read(x), rotation, [])
        x = normalised(x, self.norm, self._eps)
        return [shifted(x, step + 1) for step in range(depth)]


def layers_of(network: FeatureNetwork | TokenNetwork) -> list[Layer]:
    """The decoder layers, from the first on."""
    return [layer for layer in network.layers if isinstance(layer, Layer)]


def create(config: DrafterConfig, shared: Tensor, columns: slice) -> Network:
    """A fresh network; `columns` are those of the cached features that it reads, `shared` the target's embedding."""
    if config.kind == HEADS:
        return HeadsNetwork(config, shared.shape[1], columns)
    if config.kind == TOKENS:
        return TokenNetwork(config, shared)
    return (FusedNetwork if config.kind == FUSED_FEATURES else FeatureNetwork)(config, shared, columns)


def shifted(x: Tensor, places: int) -> Tensor:
    """What comes so many positions later, [B, L, ...]; zeros beyond the end."""
    kept = x[:, places:]
    return pad(kept, (0, 0) * (x.dim() - 2) + (0, x.shape[1] - kept.shape[1]))
