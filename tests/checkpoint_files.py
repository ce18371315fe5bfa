"""Small checkpoint files with whatever a test wants to be wrong in them: `.gguf` of one layer, safetensors headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from builders.safetensors_file import LENGTH

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 64, 96, 4, 2, 40
SHAPES = {
    "token_embd.weight": (VOCABULARY, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_v.weight": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
}


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    extra: dict[str, np.ndarray[Any, Any]] | None = None,
    rope_scaling: str | None = None,
    rotated: int | None = None,
    experts: int | None = None,
    eot: int | None = None,
    eos: int | str = 3,
    head_count_kv: int | list[int] = KV_HEADS,
    epsilon: float = 1e-5,
    token_types: list[int] | None = None,
) -> Path:
    """A one-layer model whose every element is its own index."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(head_count_kv)
    writer.add_layer_norm_rms_eps(epsilon)
    if isinstance(eos, str):
        writer.add_string("tokenizer.ggml.eos_token_id", eos)
    else:
        writer.add_eos_token_id(eos)
    if token_types is not None:
        writer.add_token_types(token_types)
    if rope_scaling is not None:
        writer.add_string(f"{architecture}.rope.scaling.type", rope_scaling)
    if rotated is not None:
        writer.add_rope_dimension_count(rotated)
    if experts is not None:
        writer.add_expert_count(experts)
    if eot is not None:
        writer.add_eot_token_id(eot)
    tensors = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
    for name, values in (tensors | (extra or {})).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and its data."""
    content = path.read_bytes()
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    return json.loads(content[LENGTH.size : end]), content[end:]


def joined(header: bytes, data: bytes) -> bytes:
    """A safetensors file of a header and data, whether they fit or not."""
    return LENGTH.pack(len(header)) + header + data
