"""The architectures that the decoder covers: what each adds to the common shape, and what its absent keys mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """A causal language model, under the class name that config.json gives it."""

    name: str
    defaults: Mapping[str, int]
    """Values of keys that are absent from config.json, as `transformers` takes them; null is not absent."""
    gguf: str | None = None
    """Its `general.architecture`, where a GGUF file tells it from the others."""
    qkv_bias: bool = False
    qk_norm: bool = False
    window_switch: str | None = None
    """The key without which `sliding_window` counts for nothing."""


LLAMA = Architecture("LlamaForCausalLM", {"max_position_embeddings": 2048}, gguf="llama")
_MISTRAL = Architecture(
    "MistralForCausalLM", {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}
)
"""In GGUF files it is `llama`."""
_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096}
_QWEN2 = Architecture("Qwen2ForCausalLM", _QWEN, gguf="qwen2", qkv_bias=True, window_switch="use_sliding_window")
_QWEN3 = Architecture(
    "Qwen3ForCausalLM", {**_QWEN, "head_dim": 128}, gguf="qwen3", qk_norm=True, window_switch="use_sliding_window"
)

ARCHITECTURES: Mapping[str, Architecture] = {item.name: item for item in (LLAMA, _MISTRAL, _QWEN2, _QWEN3)}
GGUF_ARCHITECTURES: Mapping[str, Architecture] = {item.gguf: item for item in ARCHITECTURES.values() if item.gguf}
