"""What `drafter.safetensors` must hold for a drafter of a given shape: names and sizes, whatever it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from builders.checkpoint import layer_shapes
from builders.layout import Shape, layer_items, layout
from trtspec.executors.embedded import weights
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.drafter_config import FEATURES, HEADS, TOKENS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import TOKEN_IDS, block_name, head_name, module_name

_STATE_NORM = "hidden_norm.weight"
_INPUT_NORM = "input_layernorm.weight"


def drafter_shapes(config: DrafterConfig, target: DecoderConfig) -> dict[str, Shape]:
    """Every tensor that has to be there, in the order of the model, token ids aside."""
    if config.kind == HEADS:
        return dict(_heads(config, target))
    decoder = decoder_of(config)
    if config.kind == TOKENS:
        shapes = {item.name: item.shape for item in layout(replace(decoder, tie_word_embeddings=config.tied))}
        shared = {weights.EMBEDDING: config.own_embedding, weights.HEAD: config.own_head}
        return {name: shape for name, shape in shapes.items() if shared.get(name, True)}
    shapes = {weights.EMBEDDING: (decoder.vocab_size, decoder.hidden_size)} if config.own_embedding else {}
    for module in range(config.modules):
        shapes |= _module(config, decoder, target, module)
    return shapes | ({weights.HEAD: (config.vocabulary_size, decoder.hidden_size)} if config.own_head else {})


def optional_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Every tensor that may be there."""
    ids: dict[str, Shape] = {TOKEN_IDS: (config.vocabulary_size,)}
    biases = range(config.modules) if config.kind == FEATURES else ()
    return ids | {module_name(module, "fuse_bias"): (decoder_of(config).hidden_size,) for module in biases}


def module_layer_shapes(config: DrafterConfig, index: int) -> dict[str, Shape]:
    """A checkpoint's tensors of a module's layer, under Hugging Face's names inside the layer."""
    decoder = decoder_of(config)
    if config.kind == FEATURES:
        shapes = layer_shapes(decoder)
        return shapes if index or config.first_input_norm else {k: v for k, v in shapes.items() if k != _INPUT_NORM}
    if index:
        return layer_shapes(decoder)
    return layer_shapes(decoder, 2 * decoder.hidden_size) | {_STATE_NORM: (decoder.hidden_size,)}


def decoder_of(config: DrafterConfig) -> DecoderConfig:
    """The layers of a drafter that has some."""
    if config.decoder is None:
        raise ValueError(f"a drafter of kind {config.kind!r} has no decoder")
    return config.decoder


def _module(config: DrafterConfig, decoder: DecoderConfig, target: DecoderConfig, module: int) -> dict[str, Shape]:
    hidden = decoder.hidden_size
    name = partial(module_name, module)
    fused = 2 * hidden if config.kind == FEATURES else len(config.features) * target.hidden_size
    shapes: dict[str, Shape] = {name("fuse"): (hidden, fused)}
    if config.normalised_inputs:
        shapes |= {name("token_norm"): (hidden,), name("state_norm"): (hidden,)}
    for index in range(decoder.num_layers):
        inside = module_layer_shapes(config, index)
        items = layer_items(inside, str, partial(_inside, module, index))
        shapes |= {item.name: item.shape for item in items}
    return shapes | ({name("norm"): (hidden,)} if config.final_norm else {})


def _inside(module: int, index: int, part: str) -> str:
    return module_name(module, weights.layer_name(index, part))


def _heads(config: DrafterConfig, target: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    hidden = target.hidden_size
    for head in range(config.modules):
        for block in range(config.blocks):
            yield block_name(head, block, "weight"), (hidden, hidden)
            yield block_name(head, block, "bias"), (hidden,)
        if config.own_head:
            yield head_name(head), (config.vocabulary_size, hidden)
