"""`--speculative-config`: the JSON shape that vLLM users know, read once for building and serving."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError
from trtspec.types import Method

FLAG = "--speculative-config"
MAX_DRAFT_TOKENS = 64
"""Deepest draft a configuration may ask for; beyond, a pass stops being memory bound on any hardware."""
MAX_LOOKUP_TOKENS = 32
"""Longest n-gram that is looked up; longer repetitions are found by shorter ones too."""

_DRAFTER_KEYS = frozenset({"method", "model", "num_speculative_tokens"})
_KEYS = {
    Method.NONE: frozenset({"method"}),
    Method.NGRAM: frozenset({"method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"}),
}
"""Keys that a method reads, where they are not those of a drafter with weights; any other key is refused."""


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
        _check("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_LOOKUP_TOKENS)
        _check("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)

    @property
    def draft_tokens(self) -> int:
        """Deepest draft; 0 for the method that drafts nothing."""
        return 0 if self.method is Method.NONE else self.num_speculative_tokens

    def facts(self) -> dict[str, Any]:
        """The settings that this method reads, for the manifest and `engine_id`; paths are no facts."""
        keys = known_keys(self.method) - {"method", "model"}
        return {"method": self.method.value, **{key: getattr(self, key) for key in sorted(keys)}}


def known_keys(method: Method) -> frozenset[str]:
    """The keys that a method reads."""
    return _KEYS.get(method, _DRAFTER_KEYS)


def parse(text: str) -> Mapping[str, Any]:
    """Read `{"method": "ngram", ...}` or `@file.json`, and check it; keys that are not written stay open."""
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{FLAG}: cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{FLAG}: {path} is not a text file") from error
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        example = '\'{"method": "ngram", "num_speculative_tokens": 8}\''
        raise ConfigError(f"{FLAG} is not JSON ({error}); an example: {example}") from error
    from_dict(value)
    return dict(value)


def from_dict(value: object) -> SpeculativeConfig:
    """Build a configuration from parsed JSON, with defaults for what is not written; every error names its key."""
    if not isinstance(value, dict):
        raise ConfigError(f"{FLAG} must be a JSON object, not {type(value).__name__}")
    method = _method(value)
    keys = known_keys(method)
    if unknown := sorted(set(value) - keys):
        raise ConfigError(
            f"{FLAG}: method {method.value!r} has no key {unknown[0]!r}; its keys are {', '.join(sorted(keys))}"
        )
    for key, item in value.items():
        if key not in ("method", "model") and (isinstance(item, bool) or not isinstance(item, int)):
            raise ConfigError(f"{FLAG}: {key} must be a whole number, not {item!r}")
    if not isinstance(value.get("model"), str | None):
        raise ConfigError(f"{FLAG}: model must be a path, not {value['model']!r}")
    return SpeculativeConfig(**{**value, "method": method})


def narrowed(built: SpeculativeConfig, asked: Mapping[str, Any] | None) -> SpeculativeConfig:
    """What an engine does at run time: what it was built for, changed by the keys asked for; never deeper."""
    if asked is None:
        return built
    config = from_dict({**(built.facts() if asked["method"] == built.method.value else {}), **asked})
    if config.method is Method.NONE:
        return config
    if config.method is not built.method:
        raise ConfigError(
            f"{FLAG} asks for {config.method.value} and the engine was built for {built.method.value}; "
            f"build it with --method {config.method.value}, or ask for none"
        )
    if config.num_speculative_tokens > built.num_speculative_tokens:
        raise ConfigError(
            f"{FLAG}: num_speculative_tokens is {config.num_speculative_tokens} and the engine was built "
            f"for at most {built.num_speculative_tokens}; build it for more, or ask for less"
        )
    return config


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON would let the last of two equal keys win."""
    for key, _ in pairs:
        if [name for name, _ in pairs].count(key) > 1:
            raise ValueError(f"the key {key!r} stands there twice")
    return dict(pairs)


def _method(value: dict[str, Any]) -> Method:
    if "method" not in value:
        raise ConfigError(f'{FLAG}: "method" is missing; it is never guessed')
    methods = {method.value: method for method in Method}
    name = value["method"]
    if not isinstance(name, str) or name not in methods:
        raise ConfigError(f"{FLAG}: method {name!r} is unknown; known are {', '.join(methods)}")
    return methods[name]


def _check(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{FLAG}: {key} is {value}; allowed is {low} to {high}")
