"""Small drafters on disk, in every format that `--draft` reads, for the targets of `tests.models`.

Each writer returns the tensors that it wrote, under the format's own names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 64, 128, 4, 2, 16, 267
"""The shape of `tiny_llama`."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 256,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": VOCABULARY,
}
Tensors = dict[str, Tensor]


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Values that differ everywhere; norms are near one, so that the networks compute something sane."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def layer_shapes(prefix: str, *, inputs: int = HIDDEN, input_norm: bool = True) -> dict[str, tuple[int, ...]]:
    """One Llama layer under Hugging Face's names."""
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (HEADS * HEAD_DIM, inputs),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, inputs),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, inputs),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    if input_norm:
        shapes["input_layernorm.weight"] = (HIDDEN,)
    return {prefix + name: shape for name, shape in shapes.items()}


def write_folder(path: Path, config: Mapping[str, Any], tensors: Tensors, file: str = "model.safetensors") -> Tensors:
    """A folder with one config and one weight file."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path / file)
    return tensors


def write_medusa(path: Path, heads: int = 3, blocks: int = 1, rows: int = VOCABULARY, **config: Any) -> Tensors:
    """Medusa-1."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes[f"{head}.{block}.linear.weight"] = (HIDDEN, HIDDEN)
            shapes[f"{head}.{block}.linear.bias"] = (HIDDEN,)
        shapes[f"{head}.{blocks}.weight"] = (rows, HIDDEN)
    described = {"medusa_num_heads": heads, "medusa_num_layers": blocks, "base_model_name_or_path": "authors/tiny"}
    return write_folder(path, described | config, random_tensors(shapes), "medusa_lm_head.safetensors")


def write_eagle(path: Path, *, bias: bool = True, embedding: bool = True, **config: Any) -> Tensors:
    """EAGLE and EAGLE-2."""
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), **layer_shapes("layers.0.", input_norm=False)}
    shapes |= {"fc.bias": (HIDDEN,)} if bias else {}
    shapes |= {"embed_tokens.weight": (VOCABULARY, HIDDEN)} if embedding else {}
    return write_folder(path, LLAMA | config, random_tensors(shapes))


def eagle3_tensors(layer: str, ids: Tensor | None, target_hidden: int = HIDDEN, features: int = 3) -> Tensors:
    """The tensors of EAGLE-3; without ids, all can be drafted and there is no mapping."""
    shapes = layer_shapes(layer, inputs=2 * HIDDEN) | {
        f"{layer}hidden_norm.weight": (HIDDEN,),
        "fc.weight": (HIDDEN, features * target_hidden),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY if ids is None else len(ids), HIDDEN),
    }
    tensors = random_tensors(shapes)
    if ids is None:
        return tensors
    marks = torch.zeros(VOCABULARY, dtype=torch.bool)
    marks[ids[(ids >= 0) & (ids < VOCABULARY)]] = True
    return tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": marks}


DRAFTED = torch.tensor([0, 2, 3, 7, 30, 31, 100, 200, 260, 266])
"""Ids that the reduced drafters draft."""


def write_eagle3(path: Path, ids: Tensor | None = DRAFTED, target_hidden: int = HIDDEN, **config: Any) -> Tensors:
    """EAGLE-3 with a reduced vocabulary."""
    described = LLAMA | {"draft_vocab_size": VOCABULARY if ids is None else len(ids)} | config
    return write_folder(path, described, eagle3_tensors("midlayer.", ids, target_hidden))


def write_speculators(path: Path, kind: str, tensors: Tensors, **config: Any) -> Tensors:
    """The `speculators` format around a drafter's tensors."""
    described = {
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
            "verifier": {"name_or_path": "authors/tiny", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {key: value for key, value in LLAMA.items() if key != "architectures"},
    }
    return write_folder(path, described | config, tensors)


def speculators_eagle_tensors() -> Tensors:
    shapes = {"fusion_fc.weight": (HIDDEN, 2 * HIDDEN), **layer_shapes("transformer.", input_norm=False)}
    return random_tensors(shapes)


def deepseek_tensors(first: int, modules: int) -> Tensors:
    """Modules behind the target's layers, `first` being how many those are."""
    shapes: dict[str, tuple[int, ...]] = {}
    for module in range(modules):
        prefix = f"model.layers.{first + module}."
        shapes |= layer_shapes(prefix)
        shapes |= {f"{prefix}{name}.weight": (HIDDEN,) for name in ("enorm", "hnorm", "shared_head.norm")}
        shapes |= {f"{prefix}eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
        shapes |= {f"{prefix}{name}.weight": (VOCABULARY, HIDDEN) for name in ("embed_tokens", "shared_head.head")}
    return random_tensors(shapes)


def qwen_tensors(modules: int) -> Tensors:
    """Modules under `mtp.`."""
    shapes: dict[str, tuple[int, ...]] = {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN)}
    shapes |= {f"mtp.{name}.weight": (HIDDEN,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    for module in range(modules):
        shapes |= layer_shapes(f"mtp.layers.{module}.")
    return random_tensors(shapes)
