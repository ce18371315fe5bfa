"""Puts a drafter together again from the tensors of all ranks, as its authors publish it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tensorrt_llm._double.checkpoint import net_attention
from tensorrt_llm._double.hugging_face import Source
from tensorrt_llm._double.splits import DTYPES, whole_qkv
from torch import Tensor

Parts = Sequence[dict[str, Tensor]]
"""The added tensors of each rank."""


def write_medusa(directory: Path, config: dict[str, Any], parts: Parts) -> Path:
    """Heads as FasterDecoding stores them."""
    blocks, tensors = config["num_medusa_layers"], {}
    for head in range(config["num_medusa_heads"]):
        for block in range(blocks):
            for kind in ("weight", "bias"):
                name = f"medusa_heads.{head}.medusa_layers.{block}.linear.{kind}"
                tensors[f"{head}.{block}.linear.{kind}"] = _below(parts, name)
        output = _below(parts, f"medusa_heads.{head}.lm_head.weight")
        tensors[f"{head}.{blocks}.weight"] = output[: config["vocab_size"]].contiguous()
    described = {"medusa_num_heads": config["num_medusa_heads"], "medusa_num_layers": blocks}
    return _write(directory, described, tensors, "medusa_lm_head.safetensors")


def write_eagle(directory: Path, config: dict[str, Any], parts: Parts, source: Source) -> Path:
    """The one layer that all networks share, as SafeAILab stores it."""
    _check_copies(config, parts, source)
    net, prefix = config["eagle_net_config"], "eagle_nets.0.drafter."
    layer = f"{prefix}layers.0."
    qkv = [part[f"{layer}attention.qkv.weight"] for part in parts]
    query, key, value = whole_qkv(qkv, net_attention(net))
    tensors = {
        "embed_tokens.weight": parts[0][f"{prefix}vocab_embedding.weight"],
        "fc.weight": _below(parts, f"{prefix}fc.weight"),
        "fc.bias": _below(parts, f"{prefix}fc.bias"),
        "layers.0.self_attn.q_proj.weight": query.contiguous(),
        "layers.0.self_attn.k_proj.weight": key.contiguous(),
        "layers.0.self_attn.v_proj.weight": value.contiguous(),
        "layers.0.self_attn.o_proj.weight": _beside(parts, f"{layer}attention.dense.weight"),
        "layers.0.mlp.gate_proj.weight": _below(parts, f"{layer}mlp.fc.weight"),
        "layers.0.mlp.up_proj.weight": _below(parts, f"{layer}mlp.gate.weight"),
        "layers.0.mlp.down_proj.weight": _beside(parts, f"{layer}mlp.proj.weight"),
        "layers.0.post_attention_layernorm.weight": parts[0][f"{layer}post_layernorm.weight"],
    }
    return _write(directory, _llama(net), tensors, "model.safetensors")


def _llama(net: dict[str, Any]) -> dict[str, Any]:
    """The network's config under Hugging Face's keys."""
    scaling = net.get("rotary_scaling")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{key: net[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")},
        **{key: net[key] for key in ("vocab_size", "max_position_embeddings", "hidden_act", "num_hidden_layers")},
        "head_dim": net["head_size"],
        "rms_norm_eps": net["norm_epsilon"],
        "rope_theta": net["rotary_base"],
        "rope_scaling": scaling,
        "tie_word_embeddings": False,
    }


def _check_copies(config: dict[str, Any], parts: Parts, source: Source) -> None:
    """All networks are one drafter, with the base's own embedding and head: the double can run no other."""
    for part in parts:
        for name, tensor in part.items():
            first = name.replace(f"eagle_nets.{name.split('.')[1]}.", "eagle_nets.0.", 1)
            if not torch.equal(tensor, part[first]):
                raise RuntimeError(f"{name} differs from {first}; the double runs one drafter at all depths")
    dtype = DTYPES[config["dtype"]]
    head = _below(parts, "eagle_nets.0.lm_head.weight")[: config["vocab_size"]]
    for what, given, own in (
        ("lm_head", head, source.head),
        ("drafter.vocab_embedding", parts[0]["eagle_nets.0.drafter.vocab_embedding.weight"], source.embedding),
    ):
        if not torch.equal(given, own.to(dtype)):
            raise RuntimeError(f"eagle_nets.0.{what}.weight is not the base's")


def _below(parts: Parts, name: str) -> Tensor:
    return torch.cat([part[name] for part in parts]).contiguous()


def _beside(parts: Parts, name: str) -> Tensor:
    return torch.cat([part[name] for part in parts], dim=1).contiguous()


def _write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / file)
    return directory
