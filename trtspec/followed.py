"""Which keys of a speculative configuration each flow follows: the others are refused, not ignored.

One table for builders and servers. A value that asks for what happens anyway is no reason to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.capabilities import EMBEDDED, ENGINE, PYTORCH
from trtspec.errors import ConfigError
from trtspec.speculative import EXACT, FLAG, LIMITS, WINDOWS, known_keys
from trtspec.types import Method

_DEPTH = "num_speculative_tokens"
_TREES = ("tree", "dynamic_tree", "max_tree_nodes", "tree_width")
_LIMITS = tuple(sorted(LIMITS))
_NAMED = ("method", "model")
_FOLLOWED: Mapping[str, Mapping[Method, tuple[str, ...]]] = {
    EMBEDDED: {method: tuple(sorted(known_keys(method) - LIMITS - set(_NAMED))) for method in Method},
    ENGINE: {
        Method.NONE: (),
        Method.NGRAM: (_DEPTH, "prompt_lookup_min", "prompt_lookup_max", "acceptance"),
        Method.DRAFT_MODEL: (_DEPTH, "acceptance"),
        Method.MEDUSA: (_DEPTH, "tree"),
        Method.EAGLE: (_DEPTH, *_TREES, "acceptance", "typical_threshold"),
        Method.LOOKAHEAD: WINDOWS,
    },
    PYTORCH: {
        Method.NONE: (),
        Method.NGRAM: (_DEPTH, "prompt_lookup_max", *_LIMITS),
        Method.DRAFT_MODEL: (_DEPTH, *_LIMITS),
        Method.EAGLE3: (_DEPTH, *_LIMITS),
        Method.MTP: (_DEPTH,),
    },
}
_FLOWS = {
    EMBEDDED: ("the embedded backend", "--backend embedded"),
    ENGINE: ("the engine flow of TensorRT-LLM", "--backend tensorrt_llm --flow engine"),
    PYTORCH: ("the pytorch flow of TensorRT-LLM", "--backend tensorrt_llm --flow pytorch"),
}
"""What a flow is called, and the flags that build for it."""
_NEUTRAL: Mapping[str, Any] = {
    "acceptance": EXACT,
    "tree": [],
    "dynamic_tree": False,
    "ngram_first": 0,
    "min_confidence": 0.0,
    "prompt_lookup_min": 1,
    "model": None,
    "max_concurrency": None,
    "draft_len_schedule": {},
    "acceptance_window": 0,
    "acceptance_length_threshold": 0.0,
}
"""Values that ask for what happens anyway."""


def followed(suited: Mapping[str, Any], method: Method, flow: str) -> dict[str, Any]:
    """A drafter's own settings, as far as the flow can follow them: they are a recommendation."""
    return {key: value for key, value in suited.items() if key in _FOLLOWED[flow][method]}


def check_followed(asked: Mapping[str, Any] | None, method: Method, flow: str) -> None:
    """Refuse keys that were asked for and that the flow cannot follow. The folder of a drafter is the builder's."""
    known = (*_NAMED, *_FOLLOWED[flow][method])
    for key, value in (asked or {}).items():
        if key not in known and (key not in _NEUTRAL or value != _NEUTRAL[key]):
            others = [flags for other, (_, flags) in _FLOWS.items() if key in _FOLLOWED[other].get(method, ())]
            instead = "".join(f", or build with {flags}" for flags in others)
            raise ConfigError(
                f"{FLAG}: {key} is {value!r}, which {_FLOWS[flow][0]} does not follow for method {method.value!r}; its "
                f"keys are {', '.join(known)}; leave it out{instead}"
            )
