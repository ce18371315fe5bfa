"""The decoder over the flat tokens of a whole batch. Attention is an argument: it owns the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.rope import RotaryTable, Rotation, rotate
from trtspec.executors.embedded.weights import DecoderWeights, LayerWeights, M

FEW_ROWS = range(2, 65)
"""Rows of a batch or of a draft, for which `product` turns the multiplication around."""


class Attention(Protocol):
    """Stores the keys and values of T new tokens and lets their queries see what they may."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[T, heads, D], [T, kv_heads, D], [T, kv_heads, D] -> [T, heads, D]."""
        ...


A = TypeVar("A", contravariant=True)


class Products(Protocol[M]):
    """Someone who multiplies, with matrices in a form of his own."""

    def product(self, x: Tensor, weight: M, bias: Tensor | None = None) -> Tensor:
        """x times the transposed weight, plus the bias: [T, in], [out, in], [out] -> [T, out]."""
        ...

    def rows(self, weight: M, indices: Tensor) -> Tensor:
        """Some rows of a matrix, [T] -> [T, in]."""
        ...

    def first(self, weight: M, count: int) -> M:
        """The first rows of a matrix, in place."""
        ...


class LayerStack(Products[M], Protocol[A, M]):
    """Decoder layers. `A` is what attention needs to know of a pass."""

    @property
    def config(self) -> DecoderConfig: ...

    def run(self, x: Tensor, positions: Tensor, attention: A, read: Tensor | None = None) -> Iterator[Tensor]:
        """What goes into each layer, from x [T, H] on, and what comes out of the last one.

        `read` [T, R] is what the first layer's attention reads, where that is not x.
        """
        ...

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """RMSNorm over the last dimension; a norm that the model lacks changes nothing."""
        ...


class Hidden(NamedTuple):
    """What the layers make of T tokens."""

    last: Tensor  # [T, H], normalised
    features: Tensor | None  # [T, F], those that were asked for side by side


class EagerProducts:
    """Implements `Products` in plain PyTorch."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, weight, bias)

    def rows(self, weight: Tensor, indices: Tensor) -> Tensor:
        return embedding(indices, weight)

    def first(self, weight: Tensor, count: int) -> Tensor:
        return weight[:count]


class Layers(EagerProducts):
    """Implements `LayerStack` in plain PyTorch.

    Pre-norm decoder layers: RMSNorm, rotary attention with grouped keys, SwiGLU (Touvron et al. 2023).

    Biases of the attention's inputs (Qwen2) and norms of its heads (Qwen3) are there where the weights hold them.
    """

    def __init__(self, config: DecoderConfig, weights: Sequence[LayerWeights[Tensor]], positions: int) -> None:
        self.config = config
        self._weights = weights
        some = weights[0].post_norm
        self._rotary = RotaryTable(config, positions, some.dtype, some.device)

    def run(self, x: Tensor, positions: Tensor, attention: Attention, read: Tensor | None = None) -> Iterator[Tensor]:
        rotation = self._rotary.at(positions)
        for index, layer in enumerate(self._weights):
            yield x
            normalised = self.norm(x, layer.input_norm) if index or read is None else read
            x = x + self._attend(index, layer, normalised, rotation, attention)
            x = x + _feed_forward(layer, self.norm(x, layer.post_norm))
        yield x

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _attend(
        self, index: int, layer: LayerWeights[Tensor], x: Tensor, rotation: Rotation, attention: Attention
    ) -> Tensor:
        config = self.config
        heads = product(x, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, config.head_dim)
        query, key, value = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
        query, key = self.norm(query, layer.query_norm), self.norm(key, layer.key_norm)
        mixed = attention(index, rotate(query, rotation), rotate(key, rotation), value)
        return product(mixed.flatten(1), layer.output)


class Decoder(Generic[A, M]):
    """The target: its embedding, layers and head."""

    def __init__(self, layers: LayerStack[A, M], weights: DecoderWeights[M], features: Sequence[int] = ()) -> None:
        self.config = layers.config
        self.weights = weights
        self._features = features
        self._layers = layers

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: A) -> Hidden:
        """The states of T tokens at the given positions."""
        states: dict[int, Tensor] = {}
        tokens = self._layers.rows(self.weights.embedding, token_ids)
        for index, x in enumerate(self._layers.run(tokens, positions, attention)):
            if index in self._features:
                states[index] = x
        states[LAST_HIDDEN] = self._layers.norm(x, self.weights.norm)
        features = torch.cat([states[index] for index in self._features], dim=1) if self._features else None
        return Hidden(states[LAST_HIDDEN], features)

    def logits(self, hidden: Tensor, vocabulary_size: int) -> Tensor:
        """Logits over the ids that may be emitted, [S, vocabulary_size]; padding rows are not even computed."""
        return self._layers.product(hidden, self._layers.first(self.weights.head, vocabulary_size))


def eager_decoder(
    config: DecoderConfig, weights: DecoderWeights[Tensor], positions: int, features: Sequence[int] = ()
) -> Decoder[Attention, Tensor]:
    """A target in plain PyTorch."""
    return Decoder(Layers(config, weights.layers, positions), weights, features)


def _feed_forward(layer: LayerWeights[Tensor], x: Tensor) -> Tensor:
    gate, up = product(x, layer.gate_up).chunk(2, dim=-1)
    return product(silu(gate) * up, layer.down)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus the bias: [T, in], [out, in], [out] -> [T, out].

    For few float32 rows on a CPU the weight goes first: the library then splits the work by weight rows and not by
    the few rows of x. With two threads of a Zen 3 processor nine rows took 74 ms instead of 124.
    """
    if x.dtype is torch.float32 and x.device.type == "cpu" and x.shape[0] in FEW_ROWS:
        turned = weight @ x.t() if bias is None else torch.addmm(bias.unsqueeze(1), weight, x.t())
        return turned.t().contiguous()
    return linear(x, weight, bias)
