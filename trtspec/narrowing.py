"""What a server may change of a built engine's speculation: less of it, never more, and never another law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.draft_limits import GATE
from trtspec.errors import ConfigError
from trtspec.speculative import BY_ENGINE, FLAG, TYPICAL, WINDOWS, SpeculativeConfig, checked, from_dict
from trtspec.types import Method

_OWN_BUILDS = {TYPICAL: "not lossless", BY_ENGINE: "compiled into engines"}
"""Rules of acceptance that an engine has only where it was built for them, and what they are."""


def narrowed(built: SpeculativeConfig, asked: Mapping[str, Any] | None) -> SpeculativeConfig:
    """What an engine does at run time: what it was built for, changed by the keys asked for.

    Never deeper, never with more nodes, and never by a rule that changes the law of the output where the engine's
    manifest promises that of the target.
    """
    if asked is None:
        return built
    if asked.get("model") is not None:
        raise ConfigError(
            f"{FLAG} names the model {asked['model']!r} and the engine has its drafter in its folder; leave the key "
            "out, or build an engine with --draft"
        )
    config = from_dict({**_kept(built, asked), **asked})
    if config.method is Method.NONE:
        return config
    if config.method is not built.method:
        raise ConfigError(
            f"{FLAG} asks for {config.method.value} and the engine was built for {built.method.value}; "
            f"build it with --method {config.method.value}, or ask for none"
        )
    for what, now, most in _bounds(config, built):
        if now > most:
            raise ConfigError(
                f"{FLAG}: {what} is {now} and the engine was built for at most {most}; "
                "build it for more, or ask for less"
            )
    if config.acceptance != built.acceptance and (nature := _OWN_BUILDS.get(config.acceptance)) is not None:
        raise ConfigError(
            f"{FLAG}: acceptance is {config.acceptance!r}, which is {nature}, and the engine was built with "
            f"{built.acceptance!r}; build it with {config.acceptance!r}, or leave the key out"
        )
    return config


def _bounds(config: SpeculativeConfig, built: SpeculativeConfig) -> Iterator[tuple[str, int, int]]:
    """What must not grow at run time: its name, what is asked for, and what was built."""
    if config.method is Method.LOOKAHEAD:
        for key in WINDOWS:
            yield key, getattr(config, key), getattr(built, key)
        return
    shape = "max_tree_nodes" if config.dynamic_tree else "the number of nodes of tree"
    yield "num_speculative_tokens", config.num_speculative_tokens, built.num_speculative_tokens
    yield shape, config.draft_nodes, max(built.draft_nodes, built.num_speculative_tokens)


def _kept(built: SpeculativeConfig, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The built settings that stand beside those asked for: another shape replaces the tree, less depth cuts it."""
    wanted = checked(asked)
    if wanted["method"] != built.method.value:
        return {}
    kept = built.facts()
    if wanted.get("dynamic_tree"):
        kept.pop("tree", None)
        kept["max_tree_nodes"] = min(built.max_tree_nodes, built.draft_nodes)
    if "tree" in wanted:
        kept.pop("dynamic_tree", None)
    if "num_speculative_tokens" in wanted and "tree" in kept:
        kept["tree"] = [path for path in kept["tree"] if len(path) <= wanted["num_speculative_tokens"]]
    if "num_speculative_tokens" in wanted and "draft_len_schedule" in kept:
        depth = wanted["num_speculative_tokens"]
        kept["draft_len_schedule"] = {key: min(most, depth) for key, most in kept["draft_len_schedule"].items()}
    if any(not wanted.get(key, True) for key in GATE):  # one half of the gate that is off takes the other with it
        kept = {key: value for key, value in kept.items() if key not in GATE}
    return kept
