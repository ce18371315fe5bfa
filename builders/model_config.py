"""config.json in its old and new spellings, translated for the decoder.

The checks of single values serve GGUF headers too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.architectures import ARCHITECTURES, Architecture
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.decoder_config import DecoderConfig, Llama3RopeScaling

_FULL_ATTENTION = "full_attention"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a config.json says, checked and with its defaults filled in."""

    architecture: str
    decoder: DecoderConfig
    attention_window: int | None
    eos_token_ids: frozenset[int]


def model_config(raw: Mapping[str, Any], where: Path) -> ModelConfig:
    """Translate a config.json; refuse what the decoder would compute differently."""
    architecture = _architecture(raw, where)
    filled = {**architecture.defaults, **raw}
    decoder = _decoder_config(filled, architecture, where)
    check_heads(decoder, where)
    window = _attention_window(filled, architecture, where)
    return ModelConfig(architecture.name, decoder, window, eos_ids(raw.get("eos_token_id"), where))


def _architecture(raw: Mapping[str, Any], where: Path) -> Architecture:
    names = raw.get("architectures") or f"none (model_type {raw.get('model_type')})"
    found = next((item for item in ARCHITECTURES.values() if names == [item.name]), None)
    if found is None:
        raise CheckpointError(f"{where}: architectures is {names}; supported is one of {', '.join(ARCHITECTURES)}")
    return found


def _decoder_config(raw: Mapping[str, Any], architecture: Architecture, where: Path) -> DecoderConfig:
    rope = _rope(raw)
    _check_supported({**raw, **rope}, where)
    heads = size(raw, "num_attention_heads", where)
    hidden = size(raw, "hidden_size", where)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=size(raw, "intermediate_size", where),
        num_layers=size(raw, "num_hidden_layers", where),
        num_heads=heads,
        num_kv_heads=size(raw, "num_key_value_heads", where, heads),
        head_dim=size(raw, "head_dim", where, hidden // heads),
        rms_norm_eps=number(raw, "rms_norm_eps", where, 1e-6),
        rope_theta=number({**raw, **rope}, "rope_theta", where, 10000.0),
        rope_scaling=_rope_scaling(rope, where),
        vocab_size=size(raw, "vocab_size", where),
        max_position_embeddings=size(raw, "max_position_embeddings", where),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
    )


def _attention_window(raw: Mapping[str, Any], architecture: Architecture, where: Path) -> int | None:
    switched_off = architecture.window_switch is not None and not raw.get(architecture.window_switch)
    return None if switched_off or raw.get("sliding_window") is None else size(raw, "sliding_window", where)


def check_heads(config: DecoderConfig, where: Path) -> None:
    """What attention needs of the numbers, beyond being positive."""
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{where}: {config.num_heads} heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{where}: head_dim is {config.head_dim}; rotary embedding needs an even number")


def _check_supported(raw: Mapping[str, Any], where: Path) -> None:
    if (quantization := raw.get("quantization_config")) is not None:
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else quantization
        raise CheckpointError(f"{where}: weights are quantized ({method}); supported are float weights and GGUF files")
    allowed: dict[str, tuple[object, ...]] = {
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
        "hidden_act": ("silu", None),
        "partial_rotary_factor": (1.0, None),
    }
    for key, values in allowed.items():
        if raw.get(key) not in values:
            raise CheckpointError(f"{where}: {key} is {raw[key]!r}; supported is {values[0]!r}")
    kinds = raw.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(kind == _FULL_ATTENTION for kind in kinds)):
        raise CheckpointError(f"{where}: layer_types is {kinds!r:.80}; supported is {_FULL_ATTENTION!r} in every layer")


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings: `rope_parameters` since transformers 5, `rope_scaling` before."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return rope if isinstance(rope, Mapping) else {"rope_type": rope}


def _rope_scaling(rope: Mapping[str, Any], where: Path) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise CheckpointError(f"{where}: rope type is {kind!r}; supported are 'default' and 'llama3'")
    return Llama3RopeScaling(
        factor=number(rope, "factor", where),
        low_freq_factor=number(rope, "low_freq_factor", where),
        high_freq_factor=number(rope, "high_freq_factor", where),
        original_max_position_embeddings=size(rope, "original_max_position_embeddings", where),
    )


def eos_ids(value: object, where: Path) -> frozenset[int]:
    """End-of-text ids as configs write them: one, several or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        raise CheckpointError(f"{where}: eos_token_id is {value!r}; it must be a token id or a list of them")
    return frozenset(ids)


def size(raw: Mapping[str, Any], key: str, where: Path, default: int | None = None) -> int:
    """A count of a config; the default stands where it is absent or null."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{where}: {key} is {value!r}; it must be a whole number of 1 or more")
    return value


def number(raw: Mapping[str, Any], key: str, where: Path, default: float | None = None) -> float:
    """A positive number of a config; the default stands where it is absent or null."""
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{where}: {key} is {value!r:.80}; it must be a finite number above 0")
    return float(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file of a checkpoint holds."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); copy it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value
