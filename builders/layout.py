"""What `weights.safetensors` of an engine holds: names, forms, and the checkpoint's tensors behind each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from builders.checkpoint import EMBEDDING, FINAL_NORM, HEAD, expected_shapes, layer_tensor
from trtspec.executors.embedded import weights
from trtspec.executors.embedded.decoder_config import DecoderConfig

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": tuple(f"{name}.weight" for name in _QKV),
    "qkv_bias": tuple(f"{name}.bias" for name in _QKV),
    "query_norm": ("self_attn.q_norm.weight",),
    "key_norm": ("self_attn.k_norm.weight",),
    "output": ("self_attn.o_proj.weight",),
    "post_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""By part of `LayerWeights`: the checkpoint's tensors of a layer that are stacked into it."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One weight of the engine."""

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]

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
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def layout(config: DecoderConfig) -> tuple[Packed, ...]:
    """Every weight, in the order of the model."""
    shapes = expected_shapes(config)
    packed = [_packed(weights.EMBEDDING, (EMBEDDING,), shapes)]
    for index in range(config.num_layers):
        for part, names in _PARTS.items():
            sources = tuple(layer_tensor(index, name) for name in names)
            if sources[0] in shapes:
                packed.append(_packed(weights.layer_name(index, part), sources, shapes))
    packed.append(_packed(weights.NORM, (FINAL_NORM,), shapes))
    if not config.tie_word_embeddings:
        packed.append(_packed(weights.HEAD, (HEAD,), shapes))
    return tuple(packed)


def stored_as(item: Packed, dtype: torch.dtype, quantization: str) -> Iterator[Stored]:
    """The file's tensors of one weight: itself, or its integers and scales."""
    if quantization == "int8" and item.is_matrix:
        yield Stored(item.name, torch.int8, item.shape)
        yield Stored(item.name + weights.SCALES, torch.float32, item.shape[:1])
    else:
        yield Stored(item.name, dtype, item.shape)


def _packed(name: str, sources: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]]) -> Packed:
    rows = sum(shapes[source][0] for source in sources)
    return Packed(name, sources, (rows, *shapes[sources[0]][1:]))
