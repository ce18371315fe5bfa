"""Hugging Face model folders: which files there are, and which tensor is in which of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.model_config import eos_ids, model_config, read_json
from builders.safetensors_file import TensorInfo, read_header
from trtspec.errors import CheckpointError
from trtspec.executors.embedded.decoder_config import DecoderConfig

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
    architecture: str
    config: DecoderConfig
    attention_window: int | None
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
    model = model_config(read_json(config_path), config_path)
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else None
    eos = model.eos_token_ids
    if generation is not None:
        eos |= eos_ids(generation.get("eos_token_id"), generation_path)
    tensors: dict[str, TensorInfo] = {}
    files: dict[str, Path] = {}
    for file, header in _headers(path).items():
        if again := next((name for name in header if name in files), None):
            raise CheckpointError(f"{path}: tensor {again} is both in {files[again].name} and in {file.name}; keep one")
        tensors |= header
        files |= dict.fromkeys(header, file)
    for name, info in tensors.items():
        if info.dtype not in READABLE_DTYPES:
            raise CheckpointError(
                f"{files[name]}: tensor {name} is stored as {info.dtype}; supported are {', '.join(READABLE_DTYPES)}"
            )
    return FolderCheckpoint(
        path, model.architecture, model.decoder, model.attention_window, tensors, files, eos, generation
    )


def _headers(path: Path) -> dict[Path, dict[str, TensorInfo]]:
    """The headers of all files with weights."""
    if (path / SINGLE).is_file():
        return {path / SINGLE: read_header(path / SINGLE)}
    if not (path / INDEX).is_file():
        pickles = sorted(file.name for pattern in _PICKLES for file in path.glob(pattern))
        if pickles:
            raise CheckpointError(
                f"{path} holds its weights as pickle ({pickles[0]}), which can run code when read; "
                "convert them to safetensors"
            )
        raise CheckpointError(f"{path} has neither {SINGLE} nor {INDEX}")
    return _shard_headers(path)


def _shard_headers(path: Path) -> dict[Path, dict[str, TensorInfo]]:
    """The headers of the shards that an index names, each with all that the index says of it."""
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{path / INDEX} is damaged: it has no weight_map; copy it again")
    shards = sorted(set(places.values()))
    for shard in shards:
        if Path(shard).name != shard or not (path / shard).is_file():
            raise CheckpointError(f"{path / INDEX} names {shard}, which is not in the folder; copy it again")
    headers = {shard: read_header(path / shard) for shard in shards}
    for name, shard in places.items():
        if name not in headers[shard]:
            raise CheckpointError(
                f"{path / INDEX} says that tensor {name} is in {shard}, which lacks it; copy both again"
            )
    return {path / shard: header for shard, header in headers.items()}
