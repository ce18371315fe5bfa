"""An engine folder as the runtime reads it."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorrt_llm._double.compiling import DRAFTER, ENGINE, MODEL
from tensorrt_llm._double.errors import check

_REQUIRED = {
    "MEDUSA": (("pretrained_config", "max_draft_len"), ("pretrained_config", "num_medusa_heads")),
    "EAGLE": (
        *(("build_config", "max_draft_len"), ("pretrained_config", "num_eagle_layers")),
        *(("pretrained_config", "max_non_leaves_per_layer"), ("pretrained_config", "eagle_net_config")),
    ),
    "DRAFT_TOKENS_EXTERNAL": (("build_config", "max_draft_len"),),
    "LOOKAHEAD_DECODING": (("build_config", "max_draft_len"),),
}
"""Fields that a mode reads, all of which must be there and not 0."""


class EngineFolder:
    """`config.json`, and the files of all ranks."""

    def __init__(self, path: Path) -> None:
        where = path / "config.json"
        check(where.is_file(), f"File does not exist: {where}")
        self.path = path
        self.config: dict[str, Any] = json.loads(where.read_text())
        for rank in range(self.world_size):
            check((path / ENGINE.format(rank)).is_file(), f"File does not exist: {path / ENGINE.format(rank)}")
        for section, field in _REQUIRED.get(self.mode, ()):
            check(bool(self.config[section].get(field)), f"{field} has to be provided for {self.mode}")

    @property
    def build(self) -> dict[str, Any]:
        return dict(self.config["build_config"])

    @property
    def pretrained(self) -> dict[str, Any]:
        return dict(self.config["pretrained_config"])

    @property
    def plugins(self) -> dict[str, Any]:
        return dict(self.build["plugin_config"])

    @property
    def world_size(self) -> int:
        return int(self.pretrained["mapping"]["world_size"])

    @property
    def mode(self) -> str:
        from tensorrt_llm.models.modeling_utils import SpeculativeDecodingMode

        return str(SpeculativeDecodingMode(self.build["speculative_decoding_mode"]).name)

    @property
    def speculative(self) -> bool:
        return self.mode != "NONE"

    @property
    def draft_len(self) -> int:
        """What a step may draft; this much of the sequence is kept free for it."""
        return int(self.build["max_draft_len"]) if self.speculative else 0

    @cached_property
    def hugging_face(self) -> Path:
        """A copy of the folder that the engine was made of."""
        first, *others = [json.loads((self.path / ENGINE.format(rank)).read_text()) for rank in range(self.world_size)]
        for other in others:
            check(other["hugging_face"] == first["hugging_face"], "the ranks were made of different models")
        return self.path / MODEL

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """What the network tells beside the logits: by name, from which plugins."""
        told = [json.loads((self.path / ENGINE.format(rank)).read_text())["outputs"] for rank in range(self.world_size)]
        return dict(told[-1])

    def drafter_parts(self) -> list[dict[str, Any]]:
        """The drafter's tensors of each rank."""
        from safetensors.torch import load_file

        return [load_file(self.path / DRAFTER.format(rank)) for rank in range(self.world_size)]
