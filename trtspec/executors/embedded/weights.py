"""The packed weights of an engine folder: their names, their two forms, and reading them.

Matrices are stored as the decoder multiplies with them: those that read the same input are stacked, so that they are
one product. The file is mapped, not copied, so tensors cost memory only once they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.errors import EngineFolderError
from trtspec.executors.embedded.decoder_config import DecoderConfig

NAME = "weights.safetensors"
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""By the name that manifests and flags have for them."""
EMBEDDING, NORM, HEAD = "embedding", "norm", "head"
SCALES = ".scales"
"""Ends the name of an int8 matrix's scales."""

TensorReader = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A matrix of 8-bit integers and a scale for each row: value = integer * scale, symmetric, no zero point."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out] float32

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The matrix as a plain tensor."""
        return (self.values.float() * self.scales.unsqueeze(1)).to(dtype)


Weight = Tensor | Int8Weight
"""A stored matrix, [out, in]."""
W = TypeVar("W", bound=Weight, covariant=True)


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W]):
    """One decoder layer. A part that the model lacks is None."""

    input_norm: Tensor  # [H]
    qkv: W  # [(heads + 2 kv_heads) * head_dim, H]
    qkv_bias: Tensor | None  # [(heads + 2 kv_heads) * head_dim]
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    output: W  # [H, heads * head_dim]
    post_norm: Tensor  # [H]
    gate_up: W  # [2 I, H]
    down: W  # [H, I]


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[W]):
    """A decoder: with plain tensors, or with matrices as they are stored."""

    embedding: W  # [V, H]
    layers: tuple[LayerWeights[W], ...]
    norm: Tensor  # [H]
    head: W  # [V, H]; the embedding itself where they are tied


def layer_name(index: int, part: str) -> str:
    """The stored name of a layer's part; parts are the fields of `LayerWeights`."""
    return f"layers.{index}.{part}"


def load_weights(directory: Path, config: DecoderConfig) -> DecoderWeights[Weight]:
    """Map all tensors. The builder checked names and shapes; what differs now is damage."""
    path = directory / NAME
    try:
        with safe_open(path, framework="pt") as file:
            return _read(file.get_tensor, frozenset(file.keys()), config)
    except Exception as error:  # safetensors raises its own type for a damaged file and a missing tensor alike
        raise EngineFolderError(f"{path} cannot be read ({error}); build the engine again") from error


def dense(weights: DecoderWeights[Weight], dtype: torch.dtype, device: torch.device) -> DecoderWeights[Tensor]:
    """The same weights as plain tensors of one type on a device."""

    def matrix(stored: Weight) -> Tensor:
        return (stored.dense(dtype) if isinstance(stored, Int8Weight) else stored).to(device, dtype)

    def vector(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(device, dtype)

    def layer(item: LayerWeights[Weight]) -> LayerWeights[Tensor]:
        return LayerWeights(
            input_norm=item.input_norm.to(device, dtype),
            qkv=matrix(item.qkv),
            qkv_bias=vector(item.qkv_bias),
            query_norm=vector(item.query_norm),
            key_norm=vector(item.key_norm),
            output=matrix(item.output),
            post_norm=item.post_norm.to(device, dtype),
            gate_up=matrix(item.gate_up),
            down=matrix(item.down),
        )

    embedding = matrix(weights.embedding)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(item) for item in weights.layers),
        norm=weights.norm.to(device, dtype),
        head=embedding if weights.head is weights.embedding else matrix(weights.head),
    )


def first_rows(stored: Weight, count: int) -> Weight:
    """The first rows of a matrix, sharing its memory."""
    if isinstance(stored, Int8Weight):
        return Int8Weight(stored.values[:count], stored.scales[:count])
    return stored[:count]


def _read(tensor: TensorReader, names: frozenset[str], config: DecoderConfig) -> DecoderWeights[Weight]:
    def matrix(name: str) -> Weight:
        return Int8Weight(tensor(name), tensor(name + SCALES)) if name + SCALES in names else tensor(name)

    def layer(index: int) -> LayerWeights[Weight]:
        def name(part: str) -> str:
            return layer_name(index, part)

        return LayerWeights(
            input_norm=tensor(name("input_norm")),
            qkv=matrix(name("qkv")),
            qkv_bias=tensor(name("qkv_bias")) if config.qkv_bias else None,
            query_norm=tensor(name("query_norm")) if config.qk_norm else None,
            key_norm=tensor(name("key_norm")) if config.qk_norm else None,
            output=matrix(name("output")),
            post_norm=tensor(name("post_norm")),
            gate_up=matrix(name("gate_up")),
            down=matrix(name("down")),
        )

    embedding = matrix(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.num_layers)),
        norm=tensor(NORM),
        head=embedding if config.tie_word_embeddings else matrix(HEAD),
    )
