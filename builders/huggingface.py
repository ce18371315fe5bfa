"""Hugging Face model folders as checkpoints: config, tensors, tokenizer, generation config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.model_config import eos_ids, model_config, read_json
from builders.safetensors_file import TensorInfo
from builders.tensor_files import TensorFiles, open_tensors
from trtspec.executors.embedded.decoder_config import DecoderConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class FolderCheckpoint:
    """A Hugging Face folder whose headers have been read."""

    path: Path
    architecture: str
    config: DecoderConfig
    attention_window: int | None
    stored: TensorFiles
    eos_token_ids: frozenset[int]
    generation: Mapping[str, Any] | None

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.stored.tensors

    def read(self, name: str) -> torch.Tensor:
        return self.stored.read(name)

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
    return FolderCheckpoint(
        path, model.architecture, model.decoder, model.attention_window, open_tensors(path), eos, generation
    )
