"""Drafters begin as parts of the target: its last layers, its final norm, or some of all its layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builders.training.layers import Layer
from builders.training.networks import FeatureNetwork, FusedNetwork, Network, TokenNetwork, layers_of
from builders.training.target import Target, as_float

_TOKEN_SHARE = 0.5
"""Size of what embeddings add at first, beside states of size 1."""
_NEXT_TO_NOTHING = 1e-3
"""Of the mean size of a norm's weights."""
_SCALED = ("output", "down")
"""What a layer writes with."""


@torch.no_grad()
def begin_as_target(network: Network, target: Target, scale: float) -> None:
    """Copy what fits into a fresh network. `scale` is the size of what goes into the target's upper layers.

    Layers over states of size 1 write less by that much; what they compute inside is the same, since they read
    through a norm.
    """
    last = target.config.num_layers - 1
    if isinstance(network, TokenNetwork):
        for layer, index in zip(layers_of(network), evenly(last + 1, len(network.layers)), strict=True):
            _copy(layer, target, index, 1.0)
        network.norm.copy_(target.weights.norm.float())
    elif isinstance(network, FeatureNetwork):
        for depth, layer in enumerate(reversed(layers_of(network))):
            _copy(layer, target, max(last - depth, 0), scale)
        if network.norm is not None:
            network.norm.copy_(target.weights.norm.float())
        _begin_inputs(network, target, scale)


def evenly(layers: int, count: int) -> list[int]:
    """So many layers of a model, first and last among them."""
    return [round(index * (layers - 1) / max(count - 1, 1)) for index in range(count)]


def _copy(layer: Layer, target: Target, index: int, scale: float) -> None:
    stored = target.layer(index)
    for name, parameter in layer.named_parameters():
        if name == "state_norm" and stored.input_norm is not None:
            value = stored.input_norm.float()
        elif layer.state_norm is not None and name == "input_norm":
            value = parameter  # of the embedding, which this layer of the target never read
        elif layer.state_norm is not None and name == "qkv":
            state = as_float(stored.qkv)
            value = torch.cat([_small(state.shape[0], state.shape[1]), state], dim=1)
        else:
            value = as_float(getattr(stored, name))
        parameter.copy_(value / scale if name in _SCALED else value)


def _begin_inputs(network: FeatureNetwork, target: Target, scale: float) -> None:
    """At first states pass as the target's residuals, of size 1, and embeddings add a little noise."""
    width = target.config.hidden_size
    if isinstance(network, FusedNetwork):
        network.fuse.copy_(network.fuse / scale)
        return
    unweighted = _inverse(target.weights.norm.float())  # the last state was multiplied with this norm's weights
    tokens = _small(width, width)
    if network.state_norm is None:
        network.fuse.copy_(torch.cat([tokens / _size(target.embedding), unweighted.diag()], dim=1))
    else:
        network.state_norm.copy_(unweighted)
        network.fuse.copy_(torch.cat([tokens, torch.eye(width)], dim=1))


def _inverse(weights: Tensor) -> Tensor:
    """One over each; 0 where there is next to nothing, which a state does not tell."""
    little = weights.abs() <= _NEXT_TO_NOTHING * weights.abs().mean()
    return torch.where(little, 0.0, 1 / weights)


def _small(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) * _TOKEN_SHARE / math.sqrt(columns)


def _size(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
