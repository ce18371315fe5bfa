"""Small checkpoint files, with whatever a test wants to be wrong in them: `.gguf`, safetensors, config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

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
    window: int | None = None,
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
    if window is not None:
        writer.add_sliding_window(window)
    if eot is not None:
        writer.add_eot_token_id(eot)
    tensors = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
    for name, values in (tensors | (extra or {})).items():
        writer.add_tensor(name, values)
    return _written(writer, path)


def gguf_of(folder: Path, path: Path, architecture: gguf.MODEL_ARCH) -> Path:
    """A Hugging Face folder as a `.gguf` file, under the names that the gguf package has for its tensors."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])  # by the version of transformers
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])
    _add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if architecture == gguf.MODEL_ARCH.LLAMA and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _adjacent(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        translated = names.get_name(name, (".weight", ".bias"))
        assert translated is not None
        writer.add_tensor(translated, values)
    return _written(writer, path)


def _adjacent(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """The rows of each head in another order: 0, half, 1, half + 1, and so on."""
    half = len(rows) // heads // 2
    order = [
        base + pair + part * half for base in range(0, len(rows), 2 * half) for pair in range(half) for part in (0, 1)
    ]
    return np.ascontiguousarray(rows[order])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    special = {item["content"]: item["id"] for item in document["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(document["model"]["vocab"]))
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in document["model"]["vocab"]]
    )
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_eos_token_id(special["<|endoftext|>"])


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
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


def edit_config(folder: Path, **changes: object) -> None:
    """Change values of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors of a folder's one weight file."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | dict(changes)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
