"""The shape of a decoder, and `config.json` of an engine folder, which holds exactly it.

Knows nothing of checkpoints: `builders` translates their many spellings into this one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trtspec.errors import EngineFolderError
from trtspec.json_file import UNREADABLE, check_fields, read_object

NAME = "config.json"


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Llama 3.1's stretch of the slow rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """RMSNorm, rotary half-split attention with grouped keys, SwiGLU; biases only where `qkv_bias` says so.

    One set of fields for Llama, Mistral, Qwen2 and Qwen3: what differs between them is a value, not a class.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    vocab_size: int
    """Rows of the embedding, padding included."""
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    """Query, key and value products have a bias (Qwen2)."""
    qk_norm: bool
    """Each query and key head passes an RMSNorm before its rotation (Qwen3)."""

    @classmethod
    def from_json(cls, path: Path) -> DecoderConfig:
        """Read the file of an engine folder; a key too many or too few is a damaged engine."""
        try:
            found = cls.from_dict(read_object(path))
            check_fields(found)
        except UNREADABLE as error:
            raise EngineFolderError(f"{path} is damaged ({error!s:.200}); build the engine again") from error
        return found

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> DecoderConfig:
        known = {item.name for item in fields(cls)}
        if set(value) != known:
            raise ValueError(f"its keys differ from the known ones in {', '.join(sorted(set(value) ^ known))}")
        scaling = value["rope_scaling"]
        return cls(**{**value, "rope_scaling": None if scaling is None else Llama3RopeScaling(**scaling)})

    def to_json(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
