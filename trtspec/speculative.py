"""`--speculative-config`: the JSON shape that vLLM users know, read once for building and serving."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError
from trtspec.types import Method

MAX_DRAFT_TOKENS = 64
"""Deepest draft a configuration may ask for; beyond, a pass stops being memory bound on any hardware."""


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How to speculate. The method is always named; nothing is on by a hidden default."""

    method: Method
    model: str | None = None
    """Folder of the drafter's weights, for methods that have some."""
    num_speculative_tokens: int = 8
    """Deepest draft of a pass."""
    prompt_lookup_min: int = 1
    """n-gram: shortest match of the last tokens that is continued."""
    prompt_lookup_max: int = 4
    """n-gram: longest match, tried first."""

    def __post_init__(self) -> None:
        _check("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        _check("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_DRAFT_TOKENS)
        _check("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)

    @property
    def draft_tokens(self) -> int:
        """Deepest draft; 0 for the method that drafts nothing."""
        return 0 if self.method is Method.NONE else self.num_speculative_tokens

    def facts(self) -> dict[str, Any]:
        """The settings that matter for this method, for the manifest and `engine_id`."""
        facts: dict[str, Any] = {"method": self.method.value}
        if self.method is not Method.NONE:
            facts["num_speculative_tokens"] = self.num_speculative_tokens
        if self.method is Method.NGRAM:
            facts |= {"prompt_lookup_min": self.prompt_lookup_min, "prompt_lookup_max": self.prompt_lookup_max}
        return facts


def parse(text: str) -> SpeculativeConfig:
    """Read `{"method": "ngram", ...}` or `@file.json`."""
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"--speculative-config: cannot read {path}: {error.strerror}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--speculative-config is not JSON ({error}); an example: "
            '\'{"method": "ngram", "num_speculative_tokens": 8}\''
        ) from error
    return from_dict(value)


def from_dict(value: object) -> SpeculativeConfig:
    """Build a configuration from parsed JSON; every error names its key."""
    if not isinstance(value, dict):
        raise ConfigError(f"--speculative-config must be a JSON object, not {type(value).__name__}")
    known = {item.name for item in fields(SpeculativeConfig)}
    if unknown := sorted(set(value) - known):
        raise ConfigError(f"--speculative-config: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    if "method" not in value:
        raise ConfigError('--speculative-config: "method" is missing; it is never guessed')
    methods = {method.value: method for method in Method}
    if value["method"] not in methods:
        raise ConfigError(
            f"--speculative-config: method {value['method']!r} is unknown; known are {', '.join(methods)}"
        )
    for key, item in value.items():
        if key not in ("method", "model") and (isinstance(item, bool) or not isinstance(item, int)):
            raise ConfigError(f"--speculative-config: {key} must be a whole number, not {item!r}")
    if not isinstance(value.get("model"), str | None):
        raise ConfigError(f"--speculative-config: model must be a path, not {value['model']!r}")
    return SpeculativeConfig(**{**value, "method": methods[value["method"]]})


def _check(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"--speculative-config: {key} is {value}; allowed is {low} to {high}")
