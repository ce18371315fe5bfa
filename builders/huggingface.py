"""Hugging Face model folders: config.json in its old and new spellings, safetensors in one file or many."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.checkpoint import ARCHITECTURE
from builders.safetensors_file import TensorInfo, read_header
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.llama_config import Llama3RopeScaling, LlamaConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE_DTYPES = ("F32", "BF16", "F16", "F64")
_PICKLES = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class FolderCheckpoint:
    """A Hugging Face folder whose headers have been read."""

    path: Path
    config: LlamaConfig
    tensors: Mapping[str, TensorInfo]
    files: Mapping[str, Path]
    """Where each tensor is."""
    eos_token_ids: frozenset[int]
    generation: Mapping[str, Any] | None

    def read(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self.files[name]}: cannot read tensor {name} ({error}); copy it again") from error
        return tensor

    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            self.path, local_files_only=True, trust_remote_code=False
        )
        return tokenizer


def open_folder(path: Path) -> FolderCheckpoint:
    """Read config and headers; the weights stay on disk."""
    config_path = path / "config.json"
    raw = _read_json(config_path)
    config = llama_config(raw, config_path)
    generation_path = path / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.is_file() else None
    eos = eos_ids(raw.get("eos_token_id"), config_path)
    if generation is not None:
        eos |= eos_ids(generation.get("eos_token_id"), generation_path)
    tensors: dict[str, TensorInfo] = {}
    files: dict[str, Path] = {}
    for file in _weight_files(path):
        header = read_header(file)
        tensors |= header
        files |= dict.fromkeys(header, file)
    for name, info in tensors.items():
        if info.dtype not in READABLE_DTYPES:
            raise CheckpointError(
                f"{files[name]}: tensor {name} is stored as {info.dtype}; supported are {', '.join(READABLE_DTYPES)}"
            )
    return FolderCheckpoint(path, config, tensors, files, eos, generation)


def _weight_files(path: Path) -> list[Path]:
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    if not (path / INDEX).is_file():
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickles:
            raise CheckpointError(
                f"{path} holds its weights as pickle ({pickles[0]}), which can run code when read; "
                "convert them to safetensors"
            )
        raise CheckpointError(f"{path} has neither {SINGLE} nor {INDEX}")
    index = _read_json(path / INDEX)
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{path / INDEX} is damaged: it has no weight_map; copy it again")
    shards = sorted(set(names.values()))
    for shard in shards:
        if Path(shard).name != shard or not (path / shard).is_file():
            raise CheckpointError(f"{path / INDEX} names {shard}, which is not in the folder; copy it again")
    return [path / shard for shard in shards]


def llama_config(raw: Mapping[str, Any], where: Path) -> LlamaConfig:
    """Translate a config.json; refuse what the decoder would compute differently."""
    rope = _rope(raw)
    _check_supported({**raw, **rope}, where)
    heads = size(raw, "num_attention_heads", where)
    hidden = size(raw, "hidden_size", where)
    config = LlamaConfig(
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
        max_position_embeddings=size(raw, "max_position_embeddings", where, 2048),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )
    check_heads(config, where)
    return config


def check_heads(config: LlamaConfig, where: Path) -> None:
    """What attention needs of the numbers, beyond being positive."""
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"{where}: {config.num_heads} heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{where}: head_dim is {config.head_dim}; rotary embedding needs an even number")


def _check_supported(raw: Mapping[str, Any], where: Path) -> None:
    architectures = raw.get("architectures") or f"none (model_type {raw.get('model_type')})"
    if architectures != [ARCHITECTURE]:
        raise CheckpointError(f"{where}: architectures is {architectures}; supported is [{ARCHITECTURE!r}]")
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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); copy it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value
