"""`tensorrt_llm.json` of an engine folder: what was compiled, as far as a server must know it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtspec.errors import EngineFolderError

NAME = "tensorrt_llm.json"
TARGET, DRAFT = "target", "draft"
"""Engines of a folder, and the sub-folders that hold them."""
TOP_LOGITS = "TopLogits"
"""The additional output of a target that our own loop verifies with: the best logits of every position."""

NONE, EXTERNAL, MEDUSA = "NONE", "DRAFT_TOKENS_EXTERNAL", "MEDUSA"
EAGLE, LOOKAHEAD = "EAGLE", "LOOKAHEAD_DECODING"
"""Members of `SpeculativeDecodingMode`, by name."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One compiled engine, as `builder.build` leaves it: lengths include what speculative modes add."""

    mode: str
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int
    outputs: tuple[str, ...]
    kv_bytes_per_token: int
    """Of all ranks together; for the pool of a draft engine and for people."""
    paged_context: bool = True
    """Prompts are attended to by paged context FMHA, which chunks and shared blocks need; it is for half precision."""
    block_tokens: int = 32
    """Positions of a block of the cache."""


@dataclass(frozen=True, slots=True)
class FolderSpec:
    """What an engine folder of this backend holds."""

    version: str
    """Of TensorRT-LLM."""
    flow: str
    tp: int
    pp: int
    max_prompt_tokens: int
    max_batch_size: int
    logits_size: int
    """Rows of the target's output head without a rank's padding: the width of a request's biases."""
    engines: Mapping[str, EngineSpec] = field(default_factory=dict)
    """By name; none in the PyTorch flow."""
    llm: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `tensorrt_llm.LLM`, of the PyTorch flow; paths are relative to the folder."""

    @property
    def world_size(self) -> int:
        return self.tp * self.pp

    @property
    def logits_width(self) -> int:
        """Of the rows of logits in the runtime, which pads them until all ranks have equal shares."""
        return -(-self.logits_size // self.world_size) * self.world_size

    def write(self, directory: Path) -> None:
        (directory / NAME).write_text(json.dumps(asdict(self), indent=2) + "\n")


def read(directory: Path) -> FolderSpec:
    """Read the file of an engine folder."""
    try:
        found = json.loads((directory / NAME).read_text())
        engines = {
            name: EngineSpec(**{**item, "outputs": tuple(item["outputs"])}) for name, item in found["engines"].items()
        }
        return FolderSpec(**{**found, "engines": engines})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineFolderError(f"{directory / NAME} is damaged ({error!r}); build the engine again") from error
