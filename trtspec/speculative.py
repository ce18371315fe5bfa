"""`--speculative-config`: the JSON shape that vLLM users know, read once for building and serving."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.draft_limits import OFF, DraftLimits, read_schedule, schedule_facts
from trtspec.errors import ConfigError
from trtspec.types import Method

FLAG = "--speculative-config"
MAX_DRAFT_TOKENS = 64
"""Deepest draft a configuration may ask for; beyond, a pass stops being memory bound on any hardware."""
MAX_TREE_NODES = 64
"""Most nodes of a tree."""
MAX_LOOKUP_TOKENS = 32
"""Longest n-gram that is looked up; longer repetitions are found by shorter ones too."""
EXACT, REJECTION, TYPICAL, BY_ENGINE = "exact", "rejection", "typical", "engine"
"""Rules of acceptance."""

LIMITS = frozenset(OFF)
_COMMON = frozenset({"method", "num_speculative_tokens"})
_LOOKUP = _COMMON | {"prompt_lookup_min", "prompt_lookup_max", "acceptance"}
_DRAFTER = _COMMON | {"model", "tree", "acceptance", "ngram_first", "min_confidence"}
_AUTOREGRESSIVE = _DRAFTER | {"dynamic_tree", "max_tree_nodes", "tree_width"}
WINDOWS = ("window_size", "ngram_size", "verification_set_size")
"""Sizes of the lookahead method: W, N and G."""
_KEYS = {
    Method.NONE: frozenset({"method"}),
    Method.NGRAM: _LOOKUP | LIMITS,
    Method.DRAFT_MODEL: _AUTOREGRESSIVE | LIMITS,
    Method.MEDUSA: _DRAFTER | {"typical_threshold", "typical_alpha"},
    Method.EAGLE: _AUTOREGRESSIVE | {"typical_threshold"},
    Method.EAGLE3: _AUTOREGRESSIVE | LIMITS,
    Method.MTP: _AUTOREGRESSIVE,
    Method.LOOKAHEAD: frozenset({"method", *WINDOWS}),
}
"""Keys that a method reads; any other key is refused."""
_FRACTIONS = ("min_confidence", "typical_threshold", "typical_alpha", "acceptance_length_threshold")
_OPTIONAL = ("model", "max_concurrency")
_RULES = {
    Method.NGRAM: (EXACT, BY_ENGINE),
    Method.DRAFT_MODEL: (EXACT, REJECTION, BY_ENGINE),
    Method.MEDUSA: (EXACT, TYPICAL),
    Method.EAGLE: (EXACT, TYPICAL),
}
"""Rules of acceptance beside the exact one, by method."""

_MOST = {"num_speculative_tokens": MAX_DRAFT_TOKENS, "prompt_lookup_max": MAX_LOOKUP_TOKENS}
"""Keys that bound others, at their own bounds: what a configuration leaves open, an engine may have built otherwise."""

Tree = tuple[tuple[int, ...], ...]
"""Nodes as paths of child ranks from the root: (0, 1) is the second best child of the best child."""


@dataclass(frozen=True, slots=True)
class SpeculativeConfig(DraftLimits):
    """How to speculate. The method is always named; nothing is on by a hidden default."""

    method: Method
    model: str | None = None
    """Folder of the drafter's weights, for methods that have some."""
    num_speculative_tokens: int = 8
    """Deepest draft of a pass."""
    tree: Tree = ()
    """Static tree, the most useful nodes first and each after its parent; without one, drafts are chains."""
    dynamic_tree: bool = False
    """The tree grows where the drafter is most certain (EAGLE-2)."""
    max_tree_nodes: int = 16
    """Dynamic tree: nodes that are submitted for verification."""
    tree_width: int = 4
    """Dynamic tree: children that are looked at of each node, and most nodes that are expanded at a depth: no more than
    an equal share of `max_tree_nodes`."""
    min_confidence: float = 0.0
    """Nodes whose path the drafter thinks less likely than this are not submitted. Of sampled requests the noise of the
    draw is part of what it thinks, so that this is a measure and no probability."""
    acceptance: str = EXACT
    """`exact`, or `rejection` for sampled drafts of a draft model, or `typical` of Medusa heads and of compiled EAGLE
    engines, which is not lossless, or `engine` for drafts that TensorRT-LLM verifies itself."""
    typical_threshold: float = 0.09
    """Typical acceptance: probability from which on a token is accepted whatever the entropy."""
    typical_alpha: float = 0.3
    """Typical acceptance: share of exp(-entropy) from which on a token is accepted."""
    ngram_first: int = 0
    """An earlier match of at least so many last tokens is continued instead of the drafter's proposal; 0: never."""
    prompt_lookup_min: int = 1
    """n-gram: shortest match of the last tokens that is continued."""
    prompt_lookup_max: int = 4
    """n-gram: longest match, tried first."""
    window_size: int = 4
    """Lookahead: places that are guessed ahead at once (W)."""
    ngram_size: int = 3
    """Lookahead: length of the n-grams that are collected and verified (N)."""
    verification_set_size: int = 4
    """Lookahead: n-grams that are verified in a pass (G)."""

    def __post_init__(self) -> None:
        _check("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFT_TOKENS)
        _check("prompt_lookup_max", self.prompt_lookup_max, 1, MAX_LOOKUP_TOKENS)
        _check("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        _check("max_tree_nodes", self.max_tree_nodes, 1, MAX_TREE_NODES)
        _check("tree_width", self.tree_width, 1, MAX_TREE_NODES)
        _check("min_confidence", self.min_confidence, 0, 1)
        _check("typical_threshold", self.typical_threshold, 0, 1)
        _check("typical_alpha", self.typical_alpha, 0, 1)
        _check("ngram_first", self.ngram_first, 0, MAX_LOOKUP_TOKENS)
        _check("window_size", self.window_size, 1, MAX_TREE_NODES)
        _check("ngram_size", self.ngram_size, 2, MAX_LOOKUP_TOKENS)
        _check("verification_set_size", self.verification_set_size, 0, MAX_TREE_NODES)
        for wrong in self.wrong_limits(self.num_speculative_tokens):
            raise ConfigError(f"{FLAG}: {wrong}")
        self._check_rule()
        check_tree(self.tree, self.num_speculative_tokens)
        if self.tree and self.dynamic_tree:
            raise ConfigError(f"{FLAG}: tree and dynamic_tree exclude each other; leave one out")

    def _check_rule(self) -> None:
        allowed = _RULES.get(self.method, (EXACT,))
        if self.acceptance not in allowed:
            raise ConfigError(
                f"{FLAG}: acceptance is {self.acceptance!r}; method {self.method.value!r} has {', '.join(allowed)}"
            )
        if self.acceptance == REJECTION and (self.tree or self.dynamic_tree):
            raise ConfigError(
                f"{FLAG}: acceptance {REJECTION!r} is for chains, and there is a tree; "
                'ask for "tree": [] and "dynamic_tree": false'
            )

    @property
    def has_drafter(self) -> bool:
        """The method drafts with networks of its own."""
        return "model" in known_keys(self.method)

    @property
    def draft_tokens(self) -> int:
        """Deepest draft; 0 for the method that drafts nothing."""
        if self.method is Method.LOOKAHEAD:
            return self.ngram_size - 1
        return 0 if self.method is Method.NONE else self.num_speculative_tokens

    @property
    def draft_nodes(self) -> int:
        """Most nodes of a draft."""
        if self.method is Method.LOOKAHEAD:  # the n-grams' rest, and the window's guesses (Fu et al. 2024)
            return (self.ngram_size - 2) + (self.window_size - 1 + self.verification_set_size) * (self.ngram_size - 1)
        if self.tree or not self.dynamic_tree:
            return max(len(self.tree), self.draft_tokens if not self.tree or self.ngram_first else 0)
        return max(self.max_tree_nodes, self.draft_tokens if self.ngram_first else 0)

    def facts(self) -> dict[str, Any]:
        """The settings that this method reads, for the manifest and `engine_id`. Paths are no facts, nor are limits
        that are off: so engines that were built before there were any keep their identity.
        """
        keys = known_keys(self.method) - {"method", "model"} - (LIMITS - set(self.limits))
        values = {key: getattr(self, key) for key in sorted(keys)}
        if "tree" in values:
            values["tree"] = [list(path) for path in self.tree]
        if "draft_len_schedule" in values:
            values["draft_len_schedule"] = schedule_facts(self.draft_len_schedule)
        return {"method": self.method.value, **values}


def known_keys(method: Method) -> frozenset[str]:
    """The keys that a method reads."""
    return _KEYS.get(method, _COMMON | {"model"})


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
    read = checked(value)
    schedule = dict(read.get("draft_len_schedule", ()))
    if schedule and not schedule.get(1) and "num_speculative_tokens" not in read:
        raise ConfigError(
            f"{FLAG}: draft_len_schedule has {schedule.get(1, 'nothing')} for 1 request; it begins there, with the "
            'depth of the engine (num_speculative_tokens), as in {"1": 4, "8": 0}'
        )
    most = _MOST | {"num_speculative_tokens": schedule.get(1) or MAX_DRAFT_TOKENS}  # a schedule begins with the depth
    from_dict({**{key: item for key, item in most.items() if key in known_keys(Method(read["method"]))}, **read})
    return dict(value)


def from_dict(value: object) -> SpeculativeConfig:
    """Build a configuration from parsed JSON, with defaults for what is not written; every error names its key."""
    read = checked(value)
    return SpeculativeConfig(**{**read, "method": Method(read["method"])})


def check_tree(tree: Tree, depth: int) -> None:
    """Refuse a tree whose nodes do not follow their parents, that names one twice, or that is too deep or large."""
    if len(tree) > MAX_TREE_NODES:
        raise ConfigError(f"{FLAG}: tree has {len(tree)} nodes; allowed is {MAX_TREE_NODES}")
    seen: set[tuple[int, ...]] = {()}
    for path in tree:
        if path[:-1] not in seen or path in seen:
            raise ConfigError(f"{FLAG}: tree names {list(path)} before its parent, or twice; list parents first")
        if len(path) > depth:
            raise ConfigError(
                f"{FLAG}: tree has {list(path)}, {len(path)} deep, and num_speculative_tokens is {depth}; raise it"
            )
        seen.add(path)


def checked(value: object) -> dict[str, Any]:
    """The keys as their fields have them: known ones, of the right types. Ranges are checked with all keys together."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{FLAG} must be a JSON object, not {type(value).__name__}")
    method = _method(value)
    keys = known_keys(method)
    if unknown := sorted(set(value) - keys):
        raise ConfigError(
            f"{FLAG}: method {method.value!r} has no key {unknown[0]!r}; its keys are {', '.join(sorted(keys))}"
        )
    return {key: _read(key, item) for key, item in value.items()}


def _read(key: str, item: object) -> Any:
    """A value as its field has it. Whole numbers stand for fractions, never for true and false."""
    if key in _OPTIONAL and item is None:
        return None
    if key in ("method", "model", "acceptance"):
        good = isinstance(item, str)
        kind = "a path" if key == "model" else "a text"
    elif key == "dynamic_tree":
        good, kind = isinstance(item, bool), "true or false"
    elif key == "tree":
        good, kind = _is_tree(item), "a list of paths, each a list of child ranks such as [0, 1]"
    elif key == "draft_len_schedule":
        good, kind = read_schedule(item) is not None, 'an object of whole numbers, such as {"1": 8, "16": 0}'
    elif key in _FRACTIONS:
        good, kind = isinstance(item, int | float) and not isinstance(item, bool), "a number"
    else:
        good, kind = isinstance(item, int) and not isinstance(item, bool), "a whole number"
    if not good:
        raise ConfigError(f"{FLAG}: {key} must be {kind}, not {item!r:.80}")
    if key == "draft_len_schedule":
        return read_schedule(item)
    if isinstance(item, list):
        return tuple(tuple(path) for path in item)
    return float(item) if key in _FRACTIONS and isinstance(item, int) else item


def _is_tree(item: object) -> bool:
    paths = item if isinstance(item, list | tuple) else None
    return paths is not None and all(
        isinstance(path, list | tuple)
        and path
        and all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < MAX_TREE_NODES for rank in path)
        for path in paths
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON would let the last of two equal keys win."""
    for key, _ in pairs:
        if [name for name, _ in pairs].count(key) > 1:
            raise ValueError(f"the key {key!r} stands there twice")
    return dict(pairs)


def _method(value: Mapping[str, Any]) -> Method:
    if "method" not in value:
        raise ConfigError(f'{FLAG}: "method" is missing; it is never guessed')
    methods = {method.value: method for method in Method}
    name = value["method"]
    if not isinstance(name, str) or name not in methods:
        raise ConfigError(f"{FLAG}: method {name!r} is unknown; known are {', '.join(methods)}")
    return methods[name]


def _check(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{FLAG}: {key} is {value}; allowed is {low} to {high}")
