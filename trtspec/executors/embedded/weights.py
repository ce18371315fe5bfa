"""The weights of a packed engine folder, as the tensors the decoder multiplies with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.errors import EngineFolderError
from trtspec.executors.embedded.llama_config import LlamaConfig

NAME = "weights.safetensors"

TensorReader = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; matrices that read the same input are stacked, so that they are one product."""

    input_norm: Tensor  # [H]
    qkv: Tensor  # [(heads + 2 kv_heads) * head_dim, H]
    output: Tensor  # [H, heads * head_dim]
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [H]
    head: Tensor  # [V, H]; the embedding itself where they are tied


def load_weights(directory: Path, config: LlamaConfig, device: torch.device) -> LlamaWeights:
    """Read all tensors. The builder checked names and shapes; what differs now is damage."""
    path = directory / NAME
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            return _read(file.get_tensor, config)
    except Exception as error:  # safetensors raises its own type for a damaged file and a missing tensor alike
        raise EngineFolderError(f"{path} cannot be read ({error}); build the engine again") from error


def _read(tensor: TensorReader, config: LlamaConfig) -> LlamaWeights:
    embedding = tensor("model.embed_tokens.weight")
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(_layer(tensor, f"model.layers.{index}.") for index in range(config.num_layers)),
        norm=tensor("model.norm.weight"),
        head=embedding if config.tie_word_embeddings else tensor("lm_head.weight"),
    )


def _layer(tensor: TensorReader, prefix: str) -> LayerWeights:
    def stacked(*names: str) -> Tensor:
        return torch.cat([tensor(f"{prefix}{name}.weight") for name in names])

    return LayerWeights(
        input_norm=tensor(prefix + "input_layernorm.weight"),
        qkv=stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=tensor(prefix + "self_attn.o_proj.weight"),
        post_norm=tensor(prefix + "post_attention_layernorm.weight"),
        gate_up=stacked("mlp.gate_proj", "mlp.up_proj"),
        down=tensor(prefix + "mlp.down_proj.weight"),
    )
