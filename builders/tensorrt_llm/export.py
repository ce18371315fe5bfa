"""A checkpoint of another format as a Hugging Face folder, for TensorRT-LLM, which reads nothing else: GGUF files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from builders.checkpoint import Checkpoint, expected_shapes
from builders.layout import Stored
from builders.pack import write_safetensors
from builders.progress import progress_bars
from builders.tensor_files import SINGLE

_MODEL_TYPES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"} | {
    f"Qwen{number}ForCausalLM": f"qwen{number}" for number in (2, 3)
}


def export(checkpoint: Checkpoint, dtype: str, folder: Path) -> Path:
    """Write config and weights; the tokenizer is not needed there."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(hugging_face_config(checkpoint, dtype), indent=2) + "\n")
    kind: torch.dtype = getattr(torch, dtype)
    shapes = expected_shapes(checkpoint.config)
    with progress_bars() as bars:
        tensors = (checkpoint.read(name).to(kind) for name in bars.track(list(shapes), description="exporting"))
        write_safetensors(folder / SINGLE, [Stored(name, kind, shape) for name, shape in shapes.items()], tensors)
    return folder


def hugging_face_config(checkpoint: Checkpoint, dtype: str) -> Mapping[str, Any]:
    """The model's config.json as `transformers` writes it."""
    config = checkpoint.config
    scaling = None if config.rope_scaling is None else {"rope_type": "llama3", **asdict(config.rope_scaling)}
    return {
        "architectures": [checkpoint.architecture],
        "model_type": _MODEL_TYPES[checkpoint.architecture],
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "sliding_window": None,
        "use_sliding_window": False,
        "torch_dtype": dtype,
    }
