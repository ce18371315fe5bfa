"""A small target with a multi-token-prediction module of its own, of a family that TensorRT-LLM drafts with: GLM-4.5.

Its layers are dense ones, which makes them those of a Qwen3. Upstream wants experts in the module
(`_torch/models/modeling_glm.py` of its 1.2 cycle): what the module's layer computes is the shared one's, and the
others, which the router chooses from, add nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from builders.checkpoint import FINAL_NORM, HEAD, layer_shapes, layer_tensor
from builders.model_config import model_config, read_json
from builders.tensor_files import SINGLE
from scripts.gpu_check.drafters import Seen, drawn, fitted, normalised

_EXPERTS, _CHOSEN = 8, 2
_SAME = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "dtype"),
)
"""Keys that a Qwen3 has under the same names."""


def fitted_module(target: Path, seen: Sequence[Seen]) -> dict[str, Tensor]:
    """A module under DeepSeek-V3's names: a layer that does nearly nothing, after a fusion that was fitted to give a
    token's state from its embedding and the state before it."""
    raw, tensors = read_json(target / "config.json"), load_file(target / SINGLE)
    decoder = model_config(raw, target).decoder
    norm = tensors[FINAL_NORM].float()
    embeddings = torch.cat([item.embeddings[1:] for item in seen])
    before, states = (torch.cat([item.states[rows] for item in seen]) for rows in (slice(-1), slice(1, None)))
    inputs = torch.cat([normalised(item, decoder.rms_norm_eps) for item in (embeddings, before)], dim=1)
    hidden, generator = decoder.hidden_size, torch.Generator().manual_seed(3)
    module = {name: drawn(name, shape, generator) for name, shape in layer_shapes(decoder).items()}
    module |= {
        "enorm.weight": torch.ones(hidden),
        "hnorm.weight": torch.ones(hidden),
        "eh_proj.weight": fitted(inputs, states / norm),
        "shared_head.norm.weight": norm,
        "shared_head.head.weight": tensors[HEAD],
        "embed_tokens.weight": tensors["model.embed_tokens.weight"],
    }
    dtype = tensors[HEAD].dtype
    return {layer_tensor(decoder.num_layers, name): item.to(dtype).contiguous() for name, item in module.items()}


def write_glm(path: Path, source: Path, module: Mapping[str, Tensor]) -> None:
    """A Qwen3 with its module as a GLM-4.5."""
    raw = read_json(source / "config.json")
    shutil.copytree(source, path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    (path / "config.json").write_text(json.dumps(_config(raw, source)))
    tensors = load_file(source / SINGLE)
    prefix = layer_tensor(raw["num_hidden_layers"], "mlp.")
    for name, tensor in module.items():
        shared = name.replace(prefix, f"{prefix}shared_experts.")
        tensors[shared] = tensor
    save_file(tensors | _experts(prefix, raw, tensors[HEAD].dtype), path / SINGLE, metadata={"format": "pt"})


def _config(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    layers = raw["num_hidden_layers"]
    return {
        **{key: raw[key] for key in _SAME},
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "rope_theta": model_config(raw, source).decoder.rope_theta,
        "rope_scaling": None,
        "partial_rotary_factor": 1.0,
        "attention_bias": False,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": layers,
        "moe_intermediate_size": raw["intermediate_size"],
        "n_routed_experts": _EXPERTS,
        "num_experts_per_tok": _CHOSEN,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }


def _experts(prefix: str, raw: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """A router, and experts whose last matrix is zero."""
    hidden, inner = raw["hidden_size"], raw["intermediate_size"]
    generator = torch.Generator().manual_seed(5)
    found = {
        f"{prefix}gate.weight": torch.randn(_EXPERTS, hidden, generator=generator).to(dtype),
        f"{prefix}gate.e_score_correction_bias": torch.zeros(_EXPERTS),
    }
    for expert in range(_EXPERTS):
        for name in ("gate_proj", "up_proj"):
            weights = 0.1 * torch.randn(inner, hidden, generator=generator)
            found[f"{prefix}experts.{expert}.{name}.weight"] = weights.to(dtype)
        found[f"{prefix}experts.{expert}.down_proj.weight"] = torch.zeros(hidden, inner, dtype=dtype)
    return found
