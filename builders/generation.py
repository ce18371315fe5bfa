"""How the model's authors want it sampled, and where its texts end: `generation.json` of an engine folder.

The rule is that of transformers' `generate`, so that the same checkpoint gives the same defaults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError

NAME = "generation.json"
_GREEDY: Mapping[str, float | int] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
_SAMPLED: Mapping[str, float | int] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""What transformers fills in when a sampling config leaves a value open."""
_NEUTRAL: Mapping[str, object] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "typical_p": 1.0,
}
"""Settings that change the text and are not applied, with the value that changes nothing."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Used where a request names nothing."""

    eos_token_ids: tuple[int, ...]
    """Sorted union of generation config, tokenizer and model config."""
    sampling: Mapping[str, float | int]
    source: str
    """A sentence for people: where the values come from."""

    def to_json(self, path: Path) -> None:
        document = {"eos_token_ids": self.eos_token_ids, "sampling": self.sampling, "source": self.source}
        path.write_text(json.dumps(document, indent=2) + "\n")


def generation_defaults(
    config: Mapping[str, Any] | None, model_eos: frozenset[int], tokenizer_eos: int | None
) -> GenerationDefaults:
    """Settle the defaults from a generation config, where there is one."""
    ends = model_eos | (frozenset() if tokenizer_eos is None else {tokenizer_eos})
    sampling, source = _sampling(config)
    return GenerationDefaults(tuple(sorted(ends)), sampling, source)


def _sampling(config: Mapping[str, Any] | None) -> tuple[Mapping[str, float | int], str]:
    if config is None:
        return _GREEDY, "The checkpoint has no generation config: greedy."
    left_out = [f"{key} {config[key]}" for key, neutral in _NEUTRAL.items() if config.get(key) not in (None, neutral)]
    note = f" Not applied: {', '.join(left_out)}." if left_out else ""
    if not config.get("do_sample"):
        return _GREEDY, f"The checkpoint's generation config does not sample: greedy.{note}"
    asked = {key: config[key] for key in _SAMPLED if config.get(key) is not None}
    for key, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise CheckpointError(f"generation_config.json: {key} is {value!r}; it must be a number of 0 or more")
    source = f"The checkpoint's generation config, with transformers' defaults where it is silent.{note}"
    return {**_SAMPLED, **asked}, source
