"""The one decoder layer of an EAGLE drafter: its shape, from a config of Hugging Face's keys and from its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders.architectures import LLAMA
from builders.model_config import model_config
from builders.safetensors_file import TensorInfo
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.decoder_config import DecoderConfig

USUAL = {"num_speculative_tokens": 5}
"""Settings where the files tell none: a layer that feeds on its own guesses seldom gets further."""
MOST_PADDING = 1024
"""Rows by which embeddings of one tokenizer differ: they are padded to multiples of 64 to 512."""


def eagle_decoder(raw: Mapping[str, Any], where: Path, tensors: Mapping[str, TensorInfo], prefix: str) -> DecoderConfig:
    """The layer under `prefix`. Its config names the target's class, or none: the layer is Llama's whatever it says."""
    model = model_config({**raw, "architectures": [LLAMA.name]}, where)
    decoder = within_window(model.decoder, model.attention_window if raw.get("use_sliding_window", True) else None)
    if decoder.num_layers != 1:
        raise CheckpointError(f"{where}: num_hidden_layers is {decoder.num_layers}; supported are drafters of 1 layer")
    return replace(
        decoder,
        tie_word_embeddings=False,
        qkv_bias=f"{prefix}self_attn.q_proj.bias" in tensors,
        qk_norm=f"{prefix}self_attn.q_norm.weight" in tensors,
    )


def within_window(decoder: DecoderConfig, window: int | None) -> DecoderConfig:
    """The same, never used for texts longer than its attention looks back: attention in a window is not built."""
    longest = min(decoder.max_position_embeddings, window or decoder.max_position_embeddings)
    return replace(decoder, max_position_embeddings=longest)


def check_width(path: Path, drafter: DecoderConfig, target: DecoderConfig) -> None:
    """A drafter that uses the target's embedding, and reads its states as they are, is as wide as the target."""
    if drafter.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"--draft {path}: its hidden_size is {drafter.hidden_size} and the target's is {target.hidden_size}; "
            "give a drafter that was made for this target"
        )


def check_vocabulary(path: Path, size: int, target: DecoderConfig, name: str = "vocab_size") -> None:
    """Embeddings of one tokenizer may be padded differently; no further apart than that. `name` has the `size`."""
    if abs(size - target.vocab_size) > MOST_PADDING:
        raise CheckpointError(
            f"--draft {path}: its {name} is {size} and the target's is {target.vocab_size}, "
            f"further apart than padding explains (up to {MOST_PADDING}); give a drafter that was made for this target"
        )
