"""What `weights.safetensors` of an engine holds: names, forms, and the checkpoint's tensors behind each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from builders.checkpoint import EMBEDDING, FINAL_NORM, HEAD, expected_shapes, layer_tensor
from trtspec.executors.embedded import weights
from trtspec.executors.embedded.decoder_config import DecoderConfig

Shape = tuple[int, ...]
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm.weight",),
    "state_norm": ("hidden_norm.weight",),
    "qkv": tuple(f"{name}.weight" for name in _QKV),
    "qkv_bias": tuple(f"{name}.bias" for name in _QKV),
    "query_norm": ("self_attn.q_norm.weight",),
    "key_norm": ("self_attn.k_norm.weight",),
    "output": ("self_attn.o_proj.weight",),
    "post_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""By stored part of a layer: the checkpoint's tensors of that layer that are stacked into it."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One weight of an engine: tensors of a checkpoint, stacked."""

    name: str
    sources: tuple[str, ...]
    shapes: tuple[Shape, ...]
    """Of each source."""
    kept: int | None = None
    """The first so many rows, where the rest is padding; None for all."""
    integers: bool = False
    """Token ids, which no dtype and no quantization changes."""

    @property
    def shape(self) -> Shape:
        rows = sum(shape[0] for shape in self.shapes)
        return (rows if self.kept is None else self.kept, *self.shapes[0][1:])

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1

    @property
    def size(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of the file."""

    name: str
    dtype: torch.dtype
    shape: Shape

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def layout(config: DecoderConfig) -> tuple[Packed, ...]:
    """Every weight, in the order of the model."""
    shapes = expected_shapes(config)
    packed = [Packed(weights.EMBEDDING, (EMBEDDING,), (shapes[EMBEDDING],))]
    for index in range(config.num_layers):
        packed += layer_items(shapes, partial(layer_tensor, index), partial(weights.layer_name, index))
    packed.append(Packed(weights.NORM, (FINAL_NORM,), (shapes[FINAL_NORM],)))
    if not config.tie_word_embeddings:
        packed.append(Packed(weights.HEAD, (HEAD,), (shapes[HEAD],)))
    return tuple(packed)


def layer_items(
    shapes: Mapping[str, Shape], source: Callable[[str], str], name: Callable[[str], str]
) -> Iterator[Packed]:
    """The weights of one layer; `source` and `name` place a part's tensors in the checkpoint and in the engine."""
    for part, tensors in _PARTS.items():
        sources = tuple(source(tensor) for tensor in tensors)
        if sources[0] in shapes:
            yield Packed(name(part), sources, tuple(shapes[item] for item in sources))


def stored_as(item: Packed, dtype: torch.dtype, quantization: str) -> Iterator[Stored]:
    """The file's tensors of one weight: itself, or its integers and scales."""
    if item.integers:
        yield Stored(item.name, torch.int64, item.shape)
    elif quantization == "int8" and item.is_matrix:
        yield Stored(item.name, torch.int8, item.shape)
        yield Stored(item.name + weights.SCALES, torch.float32, item.shape[:1])
    else:
        yield Stored(item.name, dtype, item.shape)
