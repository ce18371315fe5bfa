"""A checkpoint's tensors of one rank: exactly those that a model of its config has, of the right shape and type.

The drafters' names and shapes are those of upstream's classes (models/medusa/model.py, models/eagle/model.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tensorrt_llm._double.conversion import SOURCE, base_tensors
from tensorrt_llm._double.hugging_face import Source
from tensorrt_llm._double.splits import DTYPES, Attention, padded
from torch import Tensor

MEDUSA, EAGLE = "MedusaForCausalLM", "EagleForCausalLM"
Shape = tuple[int, ...]
_NET_KEYS = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_size", "intermediate_size", "vocab_size"),
    *("num_hidden_layers", "dtype", "max_position_embeddings", "rotary_base", "norm_epsilon", "hidden_act"),
)
"""What a drafter's network must be told in `eagle_net_config`."""


def read_rank(directory: Path, rank: int) -> dict[str, Tensor]:
    path = directory / f"rank{rank}.safetensors"
    assert path.is_file(), f"{path} does not exist"
    return load_file(path)


def check_tensors(tensors: dict[str, Tensor], config: dict[str, Any], rank: int, tp: int, pp: int) -> None:
    """Raise for tensors that are missing, too many, of another shape or type, or of another base."""
    if SOURCE not in config:
        raise RuntimeError(f"config.json has no {SOURCE}: save the base with save_checkpoint, and add to its config")
    base = base_tensors(Source(Path(config[SOURCE])), config, rank, tp, pp)
    shapes = {name: tuple(tensor.shape) for name, tensor in base.items()} | dict(added_shapes(config, tp))
    if missing := sorted(set(shapes) - set(tensors)):
        raise RuntimeError(f"Required but not provided tensors:{set(missing)}")
    if extra := sorted(set(tensors) - set(shapes)):
        raise RuntimeError(f"provided but not required tensors: {extra}; upstream would only warn")
    for name, shape in shapes.items():
        given = tensors[name]
        if tuple(given.shape) != shape:
            raise RuntimeError(f"{name} has shape {list(given.shape)} and must have {list(shape)}")
        if given.dtype != DTYPES[config["dtype"]]:
            raise RuntimeError(f"{name} has type {given.dtype} and the checkpoint has {config['dtype']}")
    if changed := [name for name in base if not torch.equal(base[name], tensors[name])]:
        raise RuntimeError(f"{changed[0]} is not what the base's own conversion gives")


def added_shapes(config: dict[str, Any], tp: int) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of a drafter's tensors on each rank."""
    if config["architecture"] == MEDUSA:
        yield from _medusa_shapes(config, tp)
    if config["architecture"] == EAGLE:
        for net in range(config["num_eagle_layers"]):
            yield from ((f"eagle_nets.{net}.{name}", shape) for name, shape in _eagle_shapes(config, tp))


def check_settings(config: dict[str, Any]) -> None:
    """A speculative model's config names everything about its drafter."""
    settings = {
        MEDUSA: ("num_medusa_heads", "num_medusa_layers", "max_draft_len", "model_type"),
        EAGLE: ("num_eagle_layers", "max_non_leaves_per_layer", "max_draft_len", "eagle_net_config"),
    }
    for key in settings.get(config["architecture"], ()):
        assert key in config, f"config.json has no {key}, and its default fits few drafters"
    if config["architecture"] == MEDUSA:
        assert ("qwen" in config["model_type"]) == ("qwen_type" in config), "model_type is not of the base's family"
    if config["architecture"] == EAGLE:
        net = config["eagle_net_config"]
        for key in _NET_KEYS:
            assert key in net, f"eagle_net_config has no {key}"
        assert net["num_hidden_layers"] == 1, "an EAGLE network has one layer"
        assert net["dtype"] == config["dtype"], "eagle_net_config has another dtype"


def _medusa_shapes(config: dict[str, Any], tp: int) -> Iterator[tuple[str, Shape]]:
    hidden = config["hidden_size"]
    for head in range(config["num_medusa_heads"]):
        for layer in range(config["num_medusa_layers"]):
            name = f"medusa_heads.{head}.medusa_layers.{layer}.linear"
            yield f"{name}.weight", (hidden // tp, hidden)
            yield f"{name}.bias", (hidden // tp,)
        yield f"medusa_heads.{head}.lm_head.weight", (padded(config["vocab_size"], tp) // tp, hidden)


def net_attention(net: dict[str, Any]) -> Attention:
    return Attention(net["num_attention_heads"], net["num_key_value_heads"], net["head_size"])


def _eagle_shapes(config: dict[str, Any], tp: int) -> Iterator[tuple[str, Shape]]:
    net = config["eagle_net_config"]
    hidden, inner, shape = net["hidden_size"], net["intermediate_size"], net_attention(net)
    layer = "drafter.layers.0."
    yield "drafter.fc.weight", (hidden // tp, 2 * hidden)
    yield "drafter.fc.bias", (hidden // tp,)
    yield "drafter.vocab_embedding.weight", (net["vocab_size"], hidden)
    yield f"{layer}attention.qkv.weight", (shape.rows(tp), hidden)
    yield f"{layer}attention.dense.weight", (hidden, shape.query_rows(tp))
    yield f"{layer}mlp.fc.weight", (inner // tp, hidden)
    yield f"{layer}mlp.gate.weight", (inner // tp, hidden)
    yield f"{layer}mlp.proj.weight", (hidden, inner // tp)
    yield f"{layer}post_layernorm.weight", (hidden,)
    yield "lm_head.weight", (padded(config["vocab_size"], tp) // tp, hidden)
