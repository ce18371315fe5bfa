"""The methods that `--method` offers. A method is one small file here and one line in METHODS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from builders.methods import draft_model, eagle, eagle3, lookahead, medusa, mtp, ngram, none
from trtspec import speculative
from trtspec.errors import ConfigError
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, TOKENS
from trtspec.speculative import REJECTION, SpeculativeConfig


@dataclass(frozen=True, slots=True)
class BuildMethod:
    """What the builder must know of a method."""

    summary: str
    """One line for `--help`."""
    plan: Callable[[SpeculativeConfig], str]
    """Refuse what this method cannot use, and say in a line what the engine will do."""
    drafter: str | None = None
    """The kind of networks that draft for it; None for a method without weights."""
    in_target: bool = False
    """The target's own folder may hold them."""


METHODS: Mapping[str, BuildMethod] = {
    "none": BuildMethod(none.SUMMARY, none.plan),
    "ngram": BuildMethod(ngram.SUMMARY, ngram.plan),
    "draft_model": BuildMethod(draft_model.SUMMARY, draft_model.plan, TOKENS),
    "medusa": BuildMethod(medusa.SUMMARY, medusa.plan, HEADS),
    "eagle": BuildMethod(eagle.SUMMARY, eagle.plan, FEATURES),
    "eagle3": BuildMethod(eagle3.SUMMARY, eagle3.plan, FUSED_FEATURES),
    "mtp": BuildMethod(mtp.SUMMARY, mtp.plan, FEATURES, in_target=True),
    "lookahead": BuildMethod(lookahead.SUMMARY, lookahead.plan),
}


_SHAPE = ("tree", "dynamic_tree", "max_tree_nodes", "tree_width")


def check_asked(method: str, asked: Mapping[str, Any] | None) -> None:
    """Refuse a `--speculative-config` for another method."""
    if asked is not None and asked["method"] != method:
        raise ConfigError(
            f"--method is {method!r} and --speculative-config names {asked['method']!r}; make them the same"
        )


def resolve(method: str, asked: Mapping[str, Any] | None, suited: Mapping[str, Any]) -> SpeculativeConfig:
    """The configuration of an engine: what was asked for, then what suits its drafter, then defaults."""
    keys = dict(asked or {})
    return speculative.from_dict({**_fitting(suited, keys), **keys, "method": method})


def _fitting(suited: Mapping[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The drafter's settings as far as they agree with those asked for: its tree gets their depth, or is left out."""
    fitting = dict(suited)
    if asked.get("tree"):
        fitting["num_speculative_tokens"] = max(len(path) for path in asked["tree"])
    grows = suited.get("dynamic_tree", False)
    if "tree" in asked or asked.get("dynamic_tree", grows) != grows or asked.get("acceptance") == REJECTION:
        fitting = {key: value for key, value in fitting.items() if key not in _SHAPE}
    depth = asked.get("num_speculative_tokens", 0)
    if fitting.get("tree") and depth:
        fitting["tree"] = [path for path in fitting["tree"] if len(path) <= depth]
    if fitting.get("dynamic_tree") and "max_tree_nodes" in fitting:
        fitting["max_tree_nodes"] = max(fitting["max_tree_nodes"], depth)
    return fitting
