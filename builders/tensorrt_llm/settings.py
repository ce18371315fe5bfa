"""Which keys of a speculative configuration TensorRT-LLM's flows can follow: the others are refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.capabilities import ENGINE, PYTORCH
from trtspec.errors import ConfigError
from trtspec.speculative import EXACT, FLAG, WINDOWS
from trtspec.types import Method

_TREES = ("tree", "dynamic_tree", "max_tree_nodes", "tree_width")
_FOLLOWED: Mapping[str, Mapping[Method, tuple[str, ...]]] = {
    ENGINE: {
        Method.NONE: (),
        Method.NGRAM: ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "acceptance"),
        Method.DRAFT_MODEL: ("num_speculative_tokens", "acceptance"),
        Method.MEDUSA: ("num_speculative_tokens", "tree"),
        Method.EAGLE: ("num_speculative_tokens", *_TREES, "acceptance", "typical_threshold"),
        Method.LOOKAHEAD: WINDOWS,
    },
    PYTORCH: {
        Method.NONE: (),
        Method.NGRAM: ("num_speculative_tokens", "prompt_lookup_max"),
        Method.DRAFT_MODEL: ("num_speculative_tokens",),
        Method.EAGLE3: ("num_speculative_tokens",),
        Method.MTP: ("num_speculative_tokens",),
    },
}
_NEUTRAL: Mapping[str, Any] = {
    "acceptance": EXACT,
    "tree": [],
    "dynamic_tree": False,
    "ngram_first": 0,
    "min_confidence": 0.0,
    "prompt_lookup_min": 1,
    "model": None,
}
"""Values that ask for what happens anyway."""


def followed(suited: Mapping[str, Any], method: Method, flow: str) -> dict[str, Any]:
    """A drafter's own settings, as far as the flow can follow them: they are a recommendation."""
    return {key: value for key, value in suited.items() if key in _FOLLOWED[flow][method]}


def check_followed(asked: Mapping[str, Any] | None, method: Method, flow: str) -> None:
    """Refuse keys that were asked for and that the flow cannot follow. The folder of a drafter is the builder's."""
    known = ("method", "model", *_FOLLOWED[flow][method])
    for key, value in (asked or {}).items():
        if key not in known and (key not in _NEUTRAL or value != _NEUTRAL[key]):
            raise ConfigError(
                f"{FLAG}: {key} is {value!r}, which the {flow} flow of TensorRT-LLM does not follow for method "
                f"{method.value!r}; its keys are {', '.join(known)}; leave it out, or build with --backend embedded"
            )
