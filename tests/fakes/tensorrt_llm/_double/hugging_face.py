"""A Hugging Face folder as the converters read it: its config, under whichever key, and its tensors by name."""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

_ROTARY_BASE = 10000.0
_COPIED = (".json", ".safetensors", ".jinja", ".model", ".txt")
LLAMA, QWEN = ("LlamaForCausalLM", "MistralForCausalLM"), ("Qwen2ForCausalLM", "Qwen3ForCausalLM")


class Source:
    """The folder of a model."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.raw: dict[str, Any] = json.loads((path / "config.json").read_text())

    @property
    def architecture(self) -> str:
        return str(self.raw["architectures"][0])

    @property
    def dtype(self) -> str:
        return str(self.raw.get("torch_dtype") or self.raw.get("dtype") or "float16")

    @property
    def rotary_base(self) -> float:
        self._check_spelling()
        return float(self.raw.get("rope_theta") or _ROTARY_BASE)

    @property
    def rotary_scaling(self) -> dict[str, Any] | None:
        """None where positions are rotated as they are."""
        found = self.raw.get("rope_scaling") or {}
        kind = found.get("rope_type", found.get("type", "default"))
        return None if kind == "default" else {**found, "type": kind}

    def _check_spelling(self) -> None:
        """The transformers of TensorRT-LLM 1.2.1 does not know `rope_parameters`, and would take defaults."""
        new = self.raw.get("rope_parameters") or {}
        base = new.get("rope_theta", _ROTARY_BASE) == (self.raw.get("rope_theta") or _ROTARY_BASE)
        scaled = new.get("rope_type", "default") != "default"
        assert base and (self.raw.get("rope_scaling") or not scaled), f"{self.path}: rope_parameters would be ignored"

    @property
    def head_size(self) -> int:
        return int(self.raw.get("head_dim") or self.raw["hidden_size"] // self.raw["num_attention_heads"])

    @cached_property
    def _files(self) -> dict[str, Path]:
        """The file of each tensor."""
        found: dict[str, Path] = {}
        for path in sorted(self.path.glob("*.safetensors")):
            with safe_open(path, framework="pt") as tensors:
                found |= dict.fromkeys(tensors.keys(), path)
        return found

    def read(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
            return tensor

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def has(self, name: str) -> bool:
        return name in self._files

    @property
    def embedding(self) -> Tensor:
        return self.read("model.embed_tokens.weight")

    @property
    def head(self) -> Tensor:
        """The embedding, where the two are tied."""
        return self.embedding if self.raw.get("tie_word_embeddings") else self.read("lm_head.weight")

    def copy(self, directory: Path) -> None:
        """What our own builder reads of the folder, with a tokenizer of its own where there is none."""
        directory.mkdir(exist_ok=True)
        for path in self.path.iterdir():
            if path.suffix in _COPIED:
                shutil.copyfile(path, directory / path.name)
        if not (directory / "tokenizer.json").is_file():
            _write_tokenizer(directory, self.raw["vocab_size"])


def _write_tokenizer(directory: Path, size: int) -> None:
    """A word for each id."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = WordLevel({f"<{number}>": number for number in range(size)}, unk_token="<0>")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="<0>").save_pretrained(directory)
