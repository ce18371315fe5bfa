"""What a rank's process is given: one file for all ranks of an engine, of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One engine, converted and compiled rank by rank."""

    model_class: str
    hf_model: str
    dtype: str
    world_size: int
    tp: int
    pp: int
    quant_algo: str | None
    build: Mapping[str, Any]
    """Arguments of `BuildConfig`, with `plugin_config` inside."""
    output: str
    """Where the engine goes."""
    checkpoint: str | None = None
    """Where a checkpoint with additions is put together; None where the converted model is compiled as it is."""
    loader: str | None = None
    """The class that loads it."""
    settings: Mapping[str, Any] | None = None
    """Keys of its config.json over the converted model's."""
    top_logits: Mapping[str, int] | None = None
    """Where the network has that output: fields of `TopLogits`, and `vocabulary`, how many ids may be emitted."""

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        return cls(**json.loads(path.read_text()))

    def additions(self, rank: int) -> Path:
        """The tensors that are added to a rank's file."""
        return Path(str(self.checkpoint)) / f"additions{rank}.safetensors"
