"""How the model's authors want it sampled, and where its texts end: from their files to `GenerationDefaults`.

The rule is that of transformers' `generate`, so that the same checkpoint gives the same defaults. The file that
a server reads is `trtspec.generation`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trtspec.errors import CheckpointError
from trtspec.generation import GenerationDefaults
from trtspec.types import SamplingParams

_SAMPLED: Mapping[str, float | int] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""What transformers fills in when a sampling config leaves a value open."""
_ALWAYS: Mapping[str, str] = {"repetition_penalty": "repetition_penalty", "min_new_tokens": "min_tokens"}
"""Settings that act in greedy decoding, too, with our names."""
_RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("a number, 0 to 100", lambda value: 0 <= value <= 100),
    "top_k": ("a whole number, 0 to 2147483647", lambda value: isinstance(value, int) and 0 <= value < 2**31),
    "top_p": ("a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("a number, 0 or more and below 1", lambda value: 0 <= value < 1),
    "repetition_penalty": ("a number, 0.01 to 100", lambda value: 0.01 <= value <= 100),
    "min_new_tokens": ("a whole number, 0 to 2147483647", lambda value: isinstance(value, int) and 0 <= value < 2**31),
}
"""What a server accepts of a request, in words and as a test; NaN fails each."""
_NEUTRAL: Mapping[str, object] = {
    "bad_words_ids": None,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "typical_p": 1.0,
}
"""Settings that change the text and are not applied, with the value that changes nothing."""


def generation_defaults(
    config: Mapping[str, Any] | None, model_eos: frozenset[int], tokenizer_eos: int | None
) -> GenerationDefaults:
    """Settle the defaults from a generation config, where there is one; end ids are those of all three sources."""
    ends = model_eos | (frozenset() if tokenizer_eos is None else {tokenizer_eos})
    sampling, source = _sampling(config)
    return GenerationDefaults(ends, sampling, source)


def _sampling(config: Mapping[str, Any] | None) -> tuple[SamplingParams, str]:
    if config is None:
        return SamplingParams(), "The checkpoint has no generation config: greedy."
    left_out = [f"{key} {config[key]}" for key, neutral in _NEUTRAL.items() if config.get(key) not in (None, neutral)]
    always = {_ALWAYS[key]: value for key, value in _in_range(config, _ALWAYS).items()}
    # A server tells the other defaults field by field; a least length it can only tell here.
    applied = f" min_new_tokens {always['min_tokens']} is applied as min_tokens." if always.get("min_tokens") else ""
    note = applied + (f" Not applied: {', '.join(left_out)}." if left_out else "")
    if not config.get("do_sample"):
        return SamplingParams(**always), f"The checkpoint's generation config does not sample: greedy.{note}"
    source = f"The checkpoint's generation config, with transformers' defaults where it is silent.{note}"
    return SamplingParams(**{**_SAMPLED, **_in_range(config, _SAMPLED), **always}), source


def _in_range(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """What the config sets of these keys; a value that a server would refuse is refused."""
    asked = {key: config[key] for key in keys if config.get(key) is not None}
    for key, value in asked.items():
        allowed, accepts = _RANGES[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not accepts(value):
            raise CheckpointError(f"generation_config.json: {key} is {value!r}; allowed is {allowed}")
    return asked
