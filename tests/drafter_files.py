"""Random drafters of every kind as an engine folder holds them, beside a random target; made on the spot."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from trtspec.decoding.proposer import LAST_HIDDEN
from trtspec.executors.embedded import drafter_config, drafter_weights, weights
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, TOKENS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import block_name, head_name, module_name

Tensors = dict[str, Tensor]

TARGET = DecoderConfig(
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    vocab_size=70,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
)
_PLAIN = DrafterConfig(kind=TOKENS, decoder=TARGET, features=(), vocabulary_size=64, own_embedding=True, own_head=True)
_SHARED = replace(_PLAIN, own_embedding=False, own_head=False, features=(LAST_HIDDEN,), vocabulary_size=24)
DRAFTERS: dict[str, DrafterConfig] = {
    "tied model": replace(_PLAIN, decoder=replace(TARGET, num_layers=2, hidden_size=24, qkv_bias=True)),
    "pruned model": replace(_SHARED, features=()),
    "eagle": replace(
        _SHARED, kind=FEATURES, decoder=replace(TARGET, num_layers=2), first_input_norm=False, final_norm=False
    ),
    "mtp": replace(
        _SHARED,
        kind=FEATURES,
        decoder=replace(TARGET, qk_norm=True),
        modules=2,
        normalised_inputs=True,
        normalised_states=True,
    ),
    "eagle3": replace(_SHARED, kind=FUSED_FEATURES, own_head=True, features=(0, LAST_HIDDEN, 0)),
    "eagle3, normalised residual": replace(
        _SHARED,
        kind=FUSED_FEATURES,
        decoder=replace(TARGET, qkv_bias=True),
        own_embedding=True,
        features=(0, LAST_HIDDEN),
        vocabulary_size=66,
        norm_before_residual=True,
    ),
    "medusa": replace(_SHARED, kind=HEADS, decoder=None, modules=3, blocks=2),
    "medusa, own heads": replace(_SHARED, kind=HEADS, decoder=None, modules=2, own_head=True),
}
"""Where fewer tokens can be drafted than half of them, `token_ids` says which."""


def stored_as(tensors: Tensors, form: str) -> Tensors:
    """The same in another form: matrices in bfloat16, or in int8 with scales."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if form == "int8" and tensor.dim() == 2:
            packed = weights.Int8Weight.of(tensor)
            stored[name], stored[name + weights.SCALES] = packed.values, packed.scales
        else:
            stored[name] = tensor.bfloat16() if form == "bfloat16" and tensor.dim() == 2 else tensor
    return stored


def write(folder: Path, config: DrafterConfig, target: Tensors, drafter: Tensors) -> None:
    """A target's weights, and a drafter's shape and weights."""
    save_file(target, folder / weights.NAME)
    save_file(drafter, folder / drafter_weights.NAME)
    config.to_json(folder / drafter_config.NAME)


def target_tensors(config: DecoderConfig, draws: torch.Generator) -> Tensors:
    """All weights of a decoder; a tied one has no head."""
    tensors = {weights.EMBEDDING: _matrix(draws, config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        tensors |= _layer(draws, config, weights.layer_name(index, ""), config.hidden_size)
    tensors[weights.NORM] = _norm(draws, config.hidden_size)
    if not config.tie_word_embeddings:
        tensors[weights.HEAD] = _matrix(draws, config.vocab_size, config.hidden_size)
    return tensors


def drafter_tensors(config: DrafterConfig, target: DecoderConfig, draws: torch.Generator) -> Tensors:
    """All weights of a drafter of one vocabulary with the target."""
    if config.kind == TOKENS:
        assert config.decoder is not None
        tensors = target_tensors(replace(config.decoder, tie_word_embeddings=not config.own_head or config.tied), draws)
        if not config.own_embedding:
            del tensors[weights.EMBEDDING]
    else:
        tensors = _heads(config, target, draws) if config.kind == HEADS else _modules(config, target, draws)
    if config.vocabulary_size < target.vocab_size // 2:
        picked = torch.randperm(target.vocab_size, generator=draws)[: config.vocabulary_size]
        tensors[drafter_weights.TOKEN_IDS] = picked.sort().values
    return tensors


def _modules(config: DrafterConfig, target: DecoderConfig, draws: torch.Generator) -> Tensors:
    fused = config.kind == FUSED_FEATURES
    tensors: Tensors = {}
    for module, decoder in enumerate(config.caches):
        hidden, prefix = decoder.hidden_size, module_name(module, "")
        width = len(config.features) * target.hidden_size if fused else 2 * hidden
        tensors[prefix + "fuse"] = _matrix(draws, hidden, width)
        if not fused and not config.normalised_inputs:
            tensors[prefix + "fuse_bias"] = _vector(draws, hidden)
        if config.normalised_inputs:
            tensors |= {prefix + name: _norm(draws, hidden) for name in ("token_norm", "state_norm")}
        for index in range(decoder.num_layers):
            first = prefix + weights.layer_name(index, "")
            tensors |= _layer(draws, decoder, first, 2 * hidden if fused else hidden)
        if fused:
            tensors[prefix + "layers.0.state_norm"] = _norm(draws, hidden)
        if not config.first_input_norm:
            del tensors[prefix + "layers.0.input_norm"]
        if config.final_norm:
            tensors[prefix + "norm"] = _norm(draws, hidden)
        if config.own_embedding:
            tensors[weights.EMBEDDING] = _matrix(draws, decoder.vocab_size, hidden)
        if config.own_head:
            tensors[weights.HEAD] = _matrix(draws, config.vocabulary_size, hidden)
    return tensors


def _heads(config: DrafterConfig, target: DecoderConfig, draws: torch.Generator) -> Tensors:
    hidden = target.hidden_size
    tensors: Tensors = {}
    for head in range(config.modules):
        for block in range(config.blocks):
            tensors[block_name(head, block, "weight")] = _matrix(draws, hidden, hidden)
            tensors[block_name(head, block, "bias")] = _vector(draws, hidden)
        if config.own_head:
            tensors[head_name(head)] = _matrix(draws, config.vocabulary_size, hidden)
    return tensors


def _layer(draws: torch.Generator, config: DecoderConfig, prefix: str, read: int) -> Tensors:
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    stacked = width + 2 * config.num_kv_heads * config.head_dim
    tensors = {
        "qkv": _matrix(draws, stacked, read),
        "output": _matrix(draws, hidden, width),
        "gate_up": _matrix(draws, 2 * config.intermediate_size, hidden),
        "down": _matrix(draws, hidden, config.intermediate_size),
        "input_norm": _norm(draws, hidden),
        "post_norm": _norm(draws, hidden),
    }
    if config.qkv_bias:
        tensors["qkv_bias"] = _vector(draws, stacked)
    if config.qk_norm:
        tensors |= {name: _norm(draws, config.head_dim) for name in ("query_norm", "key_norm")}
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _matrix(draws: torch.Generator, out: int, into: int) -> Tensor:
    return torch.randn(out, into, generator=draws) * (2 / math.sqrt(into))


def _vector(draws: torch.Generator, size: int) -> Tensor:
    return torch.randn(size, generator=draws)


def _norm(draws: torch.Generator, size: int) -> Tensor:
    return 0.5 + torch.rand(size, generator=draws)
