"""What was asked of a build for TensorRT-LLM, hashed, so that an equal one need not run again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trtspec
from builders.inputs import input_files
from builders.recipe import ENGINES
from builders.tensorrt_llm.asked import Asked
from trtspec import manifest
from trtspec.executors.tensorrt_llm.probe import PINNED
from trtspec.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that decides the folder. It has what `builders.stages.finished_before` reads."""

    model: str
    target: Path
    draft: Path | None
    flow: str
    dtype: str
    quantization: str
    max_context_tokens: int
    speculative: SpeculativeConfig
    asked: Asked
    allow_unverified_target: bool
    output: Path | None

    @property
    def inputs(self) -> Mapping[str, Path]:
        """The files that a build reads, by name."""
        files = input_files(self.target)
        if self.draft is not None and self.draft != self.target:
            files |= {f"draft/{name}": path for name, path in input_files(self.draft).items()}
        return files

    @property
    def sha256(self) -> str:
        facts: dict[str, Any] = {
            "version": trtspec.__version__,
            "format": manifest.FORMAT,
            "tensorrt_llm": PINNED,
            "model": self.model,
            "flow": self.flow,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "max_context_tokens": self.max_context_tokens,
            "speculative": self.speculative.facts(),
            "asked": self.asked.facts(),
            "allow_unverified_target": self.allow_unverified_target,
        }
        return hashlib.sha256(manifest.canonical_json(facts).encode()).hexdigest()

    @property
    def place(self) -> Path:
        """The engine's folder."""
        form = self.dtype if self.quantization == "none" else self.quantization
        ranks = "" if self.asked.tp * self.asked.pp == 1 else f"-tp{self.asked.tp}pp{self.asked.pp}"
        return self.output or ENGINES / f"{self.model}-{self.speculative.method.value}-{self.flow}-{form}{ranks}"

    @property
    def possible_outputs(self) -> list[Path]:
        return [self.place]
