"""What a Medusa or EAGLE checkpoint of TensorRT-LLM has beside its target's: settings, and the drafter's tensors.

Upstream's own way from Hugging Face's files to these models stops short: it casts Medusa heads to float16 whatever the
target is, drops the target's rotary settings, and knows EAGLE with exactly four layers. So the target is converted by
TensorRT-LLM, and what is added to its checkpoint is added here, under the names of its model classes
(models/medusa/model.py, models/eagle/model.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from builders.checkpoint import EMBEDDING, HEAD, Checkpoint
from builders.drafts.layout import decoder_of
from builders.drafts.source import DraftSource
from builders.tensorrt_llm.families import Family
from builders.tensorrt_llm.tensors import COLUMNS, ROWS, Added, Part, padded_vocabulary
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, HEADS
from trtspec.executors.embedded.drafter_weights import block_name, head_name, module_name
from trtspec.executors.embedded.weights import layer_name
from trtspec.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class Additions:
    """Everything that is added, and the class that loads the result."""

    model_class: str
    settings: Mapping[str, Any]
    """Keys of the checkpoint's config.json, over the target's own."""
    tensors: tuple[Added, ...]
    outputs: tuple[str, ...]
    """Of the network, beside `logits`."""
    cached_layers: int = 0
    """Layers that keep keys and values beside the target's."""


def medusa(source: DraftSource, target: Checkpoint, family: Family, draft_len: int, tp: int) -> Additions:
    """Heads on the target's last hidden state."""
    config = source.config
    _check(source, config.kind == HEADS and config.own_head, "heads with output layers of their own")
    settings = {
        "architecture": "MedusaForCausalLM",
        "model_type": family.medusa_type,
        "num_medusa_heads": config.modules,
        "num_medusa_layers": config.blocks,
        "max_draft_len": draft_len,
    }
    tensors = tuple(_heads(source, target.config, tp))
    return Additions("MedusaForCausalLm", settings, tensors, ("medusa_logits",))


def _heads(source: DraftSource, target: DecoderConfig, tp: int) -> Iterator[Added]:
    width = padded_vocabulary(target.vocab_size, tp)
    for head in range(source.config.modules):
        for block in range(source.config.blocks):
            name = f"medusa_heads.{head}.medusa_layers.{block}.linear"
            yield Added(f"{name}.weight", (_packed(source, block_name(head, block, "weight")),), ROWS)
            yield Added(f"{name}.bias", (_packed(source, block_name(head, block, "bias")),), ROWS)
        yield Added(f"medusa_heads.{head}.lm_head.weight", (_packed(source, head_name(head), width),), ROWS)


def eagle(
    source: DraftSource, target: Checkpoint, speculative: SpeculativeConfig, draft_len: int, non_leaves: int, tp: int
) -> Additions:
    """A net for each depth, all with the one drafter's weights."""
    _check_eagle(source, tp)
    layer = decoder_of(source.config)
    settings = {
        "architecture": "EagleForCausalLM",
        "num_eagle_layers": speculative.draft_tokens,
        "max_non_leaves_per_layer": non_leaves,
        "max_draft_len": draft_len,
        "eagle_net_config": _eagle_net(layer, target.config),
    }
    nets = (_eagle_tensors(source, target, layer, f"eagle_nets.{net}.", tp) for net in range(speculative.draft_tokens))
    outputs = (
        *("accepted_tokens", "num_accepted_tokens", "accepted_paths"),
        *("next_draft_tokens", "next_draft_lens", "next_draft_paths"),
    )
    return Additions("EagleForCausalLM", settings, tuple(item for net in nets for item in net), outputs, 1)


def _eagle_net(layer: DecoderConfig, target: DecoderConfig) -> dict[str, Any]:
    """The drafter's shape; what is not in it (types, rotation, quantization) is the target's, whose copy it changes."""
    return {
        "architecture": "LlamaForCausalLM",
        "num_hidden_layers": layer.num_layers,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_kv_heads,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "vocab_size": target.vocab_size,
        "head_size": layer.head_dim,
        **_own_numbers(layer, target),
    }


def _own_numbers(layer: DecoderConfig, target: DecoderConfig) -> dict[str, Any]:
    """Rotation and norm, where the drafter was trained with others than the target's."""
    own: dict[str, Any] = {}
    if layer.rope_theta != target.rope_theta:
        own["rotary_base"] = layer.rope_theta
    if layer.rms_norm_eps != target.rms_norm_eps:
        own["norm_epsilon"] = layer.rms_norm_eps
    if layer.rope_scaling != target.rope_scaling:
        scaling = layer.rope_scaling
        own["rotary_scaling"] = None if scaling is None else {"rope_type": "llama3", **asdict(scaling)}
    return own


def _eagle_tensors(
    source: DraftSource, target: Checkpoint, layer: DecoderConfig, prefix: str, tp: int
) -> Iterator[Added]:
    vocabulary, hidden = target.config.vocab_size, target.config.hidden_size
    head = EMBEDDING if target.config.tie_word_embeddings else HEAD
    embedding = Part((vocabulary, hidden), partial(target.read, EMBEDDING), vocabulary)
    output = Part((vocabulary, hidden), partial(target.read, head), padded_vocabulary(vocabulary, tp))
    packed = partial(_layer_part, source)
    part = f"{prefix}drafter.layers.0."
    yield Added(f"{prefix}drafter.fc.weight", (_packed(source, module_name(0, "fuse")),), ROWS)
    yield Added(f"{prefix}drafter.fc.bias", (_bias(source, layer.hidden_size),), ROWS)
    yield Added(f"{prefix}drafter.vocab_embedding.weight", (embedding,))
    yield Added(f"{part}attention.qkv.weight", packed("qkv"), ROWS)
    yield Added(f"{part}attention.dense.weight", packed("output"), COLUMNS)
    gate, up = packed("gate_up")
    yield Added(f"{part}mlp.fc.weight", (gate,), ROWS)
    yield Added(f"{part}mlp.gate.weight", (up,), ROWS)
    yield Added(f"{part}mlp.proj.weight", packed("down"), COLUMNS)
    yield Added(f"{part}post_layernorm.weight", packed("post_norm"))
    yield Added(f"{prefix}lm_head.weight", (output,), ROWS)


def _layer_part(source: DraftSource, part: str) -> tuple[Part, ...]:
    """The drafter's tensors behind a stored part of its layer, one by one."""
    item = next(item for item in source.items if item.name == module_name(0, layer_name(0, part)))
    return tuple(
        Part(shape, partial(source.read, name), shape[0]) for name, shape in zip(item.sources, item.shapes, strict=True)
    )


def _packed(source: DraftSource, name: str, rows: int | None = None) -> Part:
    """A drafter's tensor by its stored name, of one source; padded where `rows` says so."""
    item = next(item for item in source.items if item.name == name)
    height = item.shape[0] if rows is None else min(item.shape[0], rows)
    shape = (height, *item.shape[1:])
    return Part(shape, lambda: source.read(item.sources[0])[:height], height if rows is None else rows)


def _bias(source: DraftSource, hidden: int) -> Part:
    """Upstream's fusion always has a bias; a drafter without one gets zeros."""
    name = module_name(0, "fuse_bias")
    there = any(item.name == name for item in source.items)
    return _packed(source, name) if there else Part((hidden,), None, hidden)


def _check_eagle(source: DraftSource, tp: int) -> None:
    config = source.config
    plain = config.kind == FEATURES and config.modules == 1
    bare = not (config.own_embedding or config.own_head or config.first_input_norm or config.final_norm)
    _check(source, plain and bare and not config.normalised_inputs, "EAGLE's one layer without norms around it")
    layer = decoder_of(config)
    _check(source, not (layer.qkv_bias or layer.qk_norm or layer.num_layers != 1), "Llama's layer")
    if layer.num_kv_heads % tp or layer.num_heads % tp or layer.intermediate_size % tp:
        raise CheckpointError(
            f"--draft {source.path}: its {layer.num_heads} heads, {layer.num_kv_heads} key-value heads and "
            f"{layer.intermediate_size} inner values cannot be shared among --tp {tp}; give less"
        )


def _check(source: DraftSource, fits: bool, what: str) -> None:
    if source.token_ids is not None or source.is_int8 or not fits:
        given = "a reduced vocabulary" if source.token_ids is not None else "8-bit matrices" if source.is_int8 else ""
        raise CheckpointError(
            f"--draft {source.path}: TensorRT-LLM compiles {what}, in floats and over the whole vocabulary, and this "
            f"drafter {f'has {given}' if given else 'is another'}; serve it with --backend embedded"
        )
