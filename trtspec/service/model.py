"""What the service knows of the model it serves. It does not know requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from trtspec.capabilities import Capability, capabilities
from trtspec.generation import GenerationDefaults
from trtspec.types import EngineInfo


@dataclass(frozen=True)
class ServedModel:
    """An open engine as requests see it."""

    info: EngineInfo
    defaults: GenerationDefaults
    speculate_by_default: bool = True

    @cached_property
    def capabilities(self) -> Mapping[str, Capability]:
        return capabilities(self.info.method, self.info.flow, self.info.acceptance)

    @property
    def default_draft_tokens(self) -> int:
        """Depth where a request says nothing; 0 where speculation is off by default."""
        return self.info.default_draft_tokens if self.speculate_by_default else 0

    @property
    def max_outputs(self) -> int:
        """Most outputs of a request: they are decoded together."""
        return self.info.limits.max_batch_size

    @property
    def context_tokens(self) -> int:
        """Positions that prompt and completion share."""
        return min(self.info.limits.max_context_tokens, self.info.limits.kv_cache_tokens)


Announce = Callable[[str, ServedModel], None]
"""Told the address and the model when requests are answered."""
