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
_LARGEST = 127


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A matrix of 8-bit integers and a scale for each row: value = integer * scale, symmetric, no zero point."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out] float32

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @classmethod
    def of(cls, matrix: Tensor) -> Int8Weight:
        """Each row rounded to 255 levels, symmetric about zero, the largest magnitude on the last."""
        values = matrix.float()
        scales = values.abs().amax(dim=1) / _LARGEST
        steps = values / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)  # a row of zeros has scale 0
        return cls(steps.round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The matrix as a plain tensor."""
        return (self.values.float() * self.scales.unsqueeze(1)).to(dtype)


Weight = Tensor | Int8Weight
"""A stored matrix, [out, in]."""
W = TypeVar("W", covariant=True)
"""The form of matrices: as they are stored, or as something multiplies with them."""
M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W]):
    """One decoder layer. A part that the model lacks is None."""

    input_norm: Tensor | None  # [H]
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
    return read_tensors(directory / NAME, lambda stored: _decoder(stored, config))


def read_tensors(path: Path, read: Callable[[StoredTensors], T]) -> T:
    """What `read` makes of a file's tensors; raises `EngineFolderError` where that fails."""
    try:
        with safe_open(path, framework="pt") as file:
            return read(StoredTensors(file.get_tensor, frozenset(file.keys())))
    except Exception as error:  # safetensors raises its own type for a damaged file and a missing tensor alike
        raise EngineFolderError(f"{path} cannot be read ({error}); build the engine again") from error


class StoredTensors:
    """The tensors of a file, by name."""

    def __init__(self, tensor: Callable[[str], Tensor], names: frozenset[str]) -> None:
        self.tensor = tensor
        self._names = names

    def tensor_if(self, wanted: bool, name: str) -> Tensor | None:
        """A part that the model may lack."""
        return self.tensor(name) if wanted else None

    def optional(self, name: str) -> Tensor | None:
        """A part that is there or not."""
        return self.tensor_if(name in self._names, name)

    def matrix(self, name: str) -> Weight:
        """A matrix in the form in which it is stored."""
        if name + SCALES in self._names:
            return Int8Weight(self.tensor(name), self.tensor(name + SCALES))
        return self.tensor(name)

    def layers(
        self, config: DecoderConfig, prefix: str = "", *, first_norm: bool = True
    ) -> tuple[LayerWeights[Weight], ...]:
        """All layers of a decoder; the first one's input norm may be missing."""
        return tuple(self._layer(config, prefix, index, first_norm or index > 0) for index in range(config.num_layers))

    def _layer(self, config: DecoderConfig, prefix: str, index: int, input_norm: bool) -> LayerWeights[Weight]:
        def name(part: str) -> str:
            return prefix + layer_name(index, part)

        return LayerWeights(
            input_norm=self.tensor_if(input_norm, name("input_norm")),
            qkv=self.matrix(name("qkv")),
            qkv_bias=self.tensor_if(config.qkv_bias, name("qkv_bias")),
            query_norm=self.tensor_if(config.qk_norm, name("query_norm")),
            key_norm=self.tensor_if(config.qk_norm, name("key_norm")),
            output=self.matrix(name("output")),
            post_norm=self.tensor(name("post_norm")),
            gate_up=self.matrix(name("gate_up")),
            down=self.matrix(name("down")),
        )


def dense(weights: DecoderWeights[Weight], dtype: torch.dtype, device: torch.device) -> DecoderWeights[Tensor]:
    """The same weights as plain tensors of one type on a device."""
    return widening(dtype, device).decoder(weights)


class Conversion(Generic[M]):
    """From stored weights to another form of them; of a matrix that several read, one is made."""

    def __init__(self, matrix: Callable[[Weight], M], vector: Callable[[Tensor], Tensor]) -> None:
        self._matrix = matrix
        self.vector = vector
        self._made: dict[int, tuple[Weight, M]] = {}  # with what was stored, so that no other takes its id

    def decoder(self, weights: DecoderWeights[Weight]) -> DecoderWeights[M]:
        return DecoderWeights(
            embedding=self.matrix(weights.embedding),
            layers=tuple(self.layer(item) for item in weights.layers),
            norm=self.vector(weights.norm),
            head=self.matrix(weights.head),
        )

    def layer(self, item: LayerWeights[Weight]) -> LayerWeights[M]:
        return LayerWeights(
            input_norm=self.vector_if(item.input_norm),
            qkv=self.matrix(item.qkv),
            qkv_bias=self.vector_if(item.qkv_bias),
            query_norm=self.vector_if(item.query_norm),
            key_norm=self.vector_if(item.key_norm),
            output=self.matrix(item.output),
            post_norm=self.vector(item.post_norm),
            gate_up=self.matrix(item.gate_up),
            down=self.matrix(item.down),
        )

    def matrix(self, stored: Weight) -> M:
        if id(stored) not in self._made:
            self._made[id(stored)] = stored, self._matrix(stored)
        return self._made[id(stored)][1]

    def matrix_if(self, stored: Weight | None) -> M | None:
        """A part that the model may lack."""
        return None if stored is None else self.matrix(stored)

    def vector_if(self, tensor: Tensor | None) -> Tensor | None:
        """A part that the model may lack."""
        return None if tensor is None else self.vector(tensor)


def widening(dtype: torch.dtype, device: torch.device) -> Conversion[Tensor]:
    """To plain tensors of one type on a device."""

    def matrix(stored: Weight) -> Tensor:
        plain = stored.dense(dtype) if isinstance(stored, Int8Weight) else stored
        return plain.to(device, dtype)

    return Conversion(matrix, lambda tensor: tensor.to(device, dtype))


def first_rows(stored: Weight, count: int) -> Weight:
    """The first rows of a matrix, sharing its memory."""
    if isinstance(stored, Int8Weight):
        return Int8Weight(stored.values[:count], stored.scales[:count])
    return stored[:count]


def picked_rows(stored: Weight, ids: Tensor) -> Weight:
    """A copy of some rows of a matrix."""
    if isinstance(stored, Int8Weight):
        return Int8Weight(stored.values[ids], stored.scales[ids])
    return stored[ids]


def _decoder(stored: StoredTensors, config: DecoderConfig) -> DecoderWeights[Weight]:
    embedding = stored.matrix(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=stored.layers(config),
        norm=stored.tensor(NORM),
        head=embedding if config.tie_word_embeddings else stored.matrix(HEAD),
    )
