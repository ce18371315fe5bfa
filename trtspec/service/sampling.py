"""Sampling fields of a request to `SamplingParams`: defaults are filled in, and every value is in its range.

Bad words stay out of it as they are texts; `resolve` knows the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.decoding.checks import MAX_LOGPROBS
from trtspec.service.checks import check, check_number
from trtspec.types import SamplingParams
from trtspec.v1 import inference_pb2 as pb

MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARACTERS = 256
"""Longer texts have so many spellings in tokens that refusing one of them says nothing."""
LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.01, 100.0
"""Float32 logits survive these; a penalty near 0 or infinity would make NaN of them."""
_DEFAULTED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def sampling_params(request: pb.GenerateRequest, defaults: SamplingParams, vocabulary: int) -> SamplingParams:
    """How tokens are chosen, bad words left out. `max_tokens` has been checked."""
    asked = request.sampling
    values: dict[str, Any] = {name: getattr(asked if asked.HasField(name) else defaults, name) for name in _DEFAULTED}
    sampling = SamplingParams(
        **values,
        logit_bias=_logit_bias(asked.logit_bias, vocabulary),
        min_tokens=_min_tokens(request.stopping, defaults.min_tokens),
    )
    check_number("sampling.temperature", sampling.temperature, 0, 100)
    check(sampling.top_k >= 0, "sampling.top_k", sampling.top_k, "0 or more")
    check(0 < sampling.top_p <= 1, "sampling.top_p", sampling.top_p, "above 0 and at most 1")
    check(0 <= sampling.min_p < 1, "sampling.min_p", sampling.min_p, "0 or more and below 1")
    low, high = LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY
    check_number("sampling.repetition_penalty", sampling.repetition_penalty, low, high)
    check_number("sampling.presence_penalty", sampling.presence_penalty, -2, 2)
    check_number("sampling.frequency_penalty", sampling.frequency_penalty, -2, 2)
    return sampling


def bad_words(asked: pb.SamplingOptions) -> tuple[str, ...]:
    """The texts that must not appear, each once."""
    field, words = "sampling.bad_words", asked.bad_words
    check(len(words) <= MAX_BAD_WORDS, field, f"{len(words)} entries", f"at most {MAX_BAD_WORDS}")
    allowed = f"a text of 1 to {MAX_BAD_WORD_CHARACTERS} characters"
    for index, word in enumerate(words):
        size = f"a text of {len(word)} characters" if word else "empty"
        check(0 < len(word) <= MAX_BAD_WORD_CHARACTERS, f"{field}[{index}]", size, allowed)
    return tuple(dict.fromkeys(words))


def top_logprobs(asked: pb.LogprobOptions, name: str) -> int | None:
    """How many of the best tokens are told beside the chosen one; None for no log-probabilities at all."""
    if not asked.HasField(name):
        return None
    count: int = getattr(asked, name)
    check_number(f"logprobs.{name}", count, 0, MAX_LOGPROBS)
    return count


def _logit_bias(asked: Mapping[int, float], vocabulary: int) -> tuple[tuple[int, float], ...]:
    field = "sampling.logit_bias"
    check(len(asked) <= MAX_LOGIT_BIASES, field, f"{len(asked)} entries", f"at most {MAX_LOGIT_BIASES}")
    for token_id, bias in asked.items():
        check(0 <= token_id < vocabulary, field, f"for token id {token_id}", f"token ids of 0 to {vocabulary - 1}")
        check_number(f"{field}[{token_id}]", bias, -100, 100)
    return tuple(sorted(asked.items()))


def _min_tokens(asked: pb.StoppingOptions, default: int) -> int:
    if not asked.HasField("min_tokens"):
        return default
    field, least = "stopping.min_tokens", asked.min_tokens
    check(least >= 0, field, least, "0 or more")
    if asked.HasField("max_tokens"):
        check(least <= asked.max_tokens, field, least, f"0 to {asked.max_tokens}, which is max_tokens")
    return least
