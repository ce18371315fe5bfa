"""What the service knows of the model it serves, and the defaults that requests start from.

It reads `generation.json` of an engine folder, which the builder wrote. It does not know requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.capabilities import Capability, capabilities
from trtspec.errors import EngineFolderError
from trtspec.types import EngineInfo, SamplingParams

GENERATION = "generation.json"
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Values of defaults that cannot be applied in this release with which nothing is lost."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values that unset request fields take."""

    eos_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    source: str = "The model names no sampling defaults: greedy."

    @classmethod
    def load(cls, engine: Path) -> GenerationDefaults:
        """Read the defaults of an engine folder."""
        path = engine / GENERATION
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            sampling = document["sampling"]
            return cls(
                eos_ids=frozenset(int(id_) for id_ in document["eos_token_ids"]),
                sampling=SamplingParams(
                    temperature=float(sampling.get("temperature", 0.0)),
                    top_k=int(sampling.get("top_k") or 0),
                    top_p=float(sampling.get("top_p", 1.0)),
                    min_p=float(sampling.get("min_p", 0.0)),
                ),
                source=document["source"] + _not_applied(sampling),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineFolderError(f"{path} cannot be read ({error}); build the engine again") from error


def _not_applied(sampling: Mapping[str, Any]) -> str:
    """A note for defaults that this release cannot apply, so that they do not vanish silently."""
    left = [
        f"{name} {value}"
        for name, value in sorted(sampling.items())
        if name not in ("temperature", "top_k", "top_p", "min_p") and value is not None and value != _NEUTRAL.get(name)
    ]
    return f" Not applied in this release: {', '.join(left)}." if left else ""


@dataclass(frozen=True)
class ServedModel:
    """An open engine as requests see it."""

    info: EngineInfo
    defaults: GenerationDefaults
    speculate_by_default: bool = True

    @cached_property
    def capabilities(self) -> Mapping[str, Capability]:
        return capabilities(self.info.method, self.info.backend)

    @property
    def default_draft_tokens(self) -> int:
        """Depth where a request says nothing; 0 where speculation is off by default."""
        return self.info.default_draft_tokens if self.speculate_by_default else 0

    @property
    def context_tokens(self) -> int:
        """Positions that prompt and completion share."""
        return min(self.info.limits.max_context_tokens, self.info.limits.kv_cache_tokens)
