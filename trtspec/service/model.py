"""What the service knows of the model it serves. It does not know requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from trtspec import generation
from trtspec.capabilities import Capability, Support, capabilities
from trtspec.errors import ConfigError
from trtspec.generation import GenerationDefaults
from trtspec.service.options import ServeOptions
from trtspec.types import EngineInfo, SamplingParams


@dataclass(frozen=True)
class ServedModel:
    """An open engine as requests see it."""

    info: EngineInfo
    defaults: GenerationDefaults
    speculate_by_default: bool = True

    @cached_property
    def capabilities(self) -> Mapping[str, Capability]:
        table = capabilities(self.info.method, self.info.flow, self.info.acceptance)
        lacking = {name: Capability(name, Support.REFUSED, reason) for name, reason in self.info.lacks}
        return {**table, **lacking}

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


def served_model(info: EngineInfo, directory: Path, options: ServeOptions) -> ServedModel:
    """The model of an engine folder, as the engine can serve it.

    Defaults that the engine refuses are left out, and their source says so. Raises `ConfigError` where it cannot leave
    out speculation, and that is to be the default.
    """
    table = capabilities(info.method, info.flow, info.acceptance)
    off, speculate = table["speculation_off"], options.default_speculation == "on"
    if not speculate and info.limits.max_draft_tokens and off.support is Support.REFUSED:
        raise ConfigError(f"--default-speculation off: {off.reason}")
    return ServedModel(info, _usable(generation.read(directory), table), speculate)


def _usable(defaults: GenerationDefaults, table: Mapping[str, Capability]) -> GenerationDefaults:
    """Without what the engine would refuse of every request that leaves it open."""
    asked, neutral = defaults.sampling, SamplingParams()
    refused = {name for name, item in table.items() if item.support is Support.REFUSED}
    names = [item.name for item in fields(SamplingParams) if getattr(asked, item.name) != getattr(neutral, item.name)]
    left_out = [name for name in names if name in refused]
    if not left_out:
        return defaults
    told = ", ".join(f"{name} {getattr(asked, name)}" for name in left_out)
    sampling = replace(asked, **{name: getattr(neutral, name) for name in left_out})
    source = f"{defaults.source} Not applied, for this engine refuses it: {told}."
    return replace(defaults, sampling=sampling, source=source)


Announce = Callable[[str, ServedModel], None]
"""Told the address and the model when requests are answered."""
