"""What an engine refuses before it is queued: requests that could never run, or that would break a pass.

Ranges that only change what comes out are the service's to check.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.errors import InvalidField, PromptTooLong
from trtspec.types import Limits, Request

MAX_LOGPROBS = 20
"""Most tokens whose log-probabilities are told beside the chosen one."""


def check_request(request: Request, limits: Limits) -> None:
    """Raises `InvalidField` or `PromptTooLong`."""
    if not request.prompt:
        raise InvalidField("prompt", "empty", "at least one token")
    _within("max_tokens", request.max_tokens, 1, None)
    _check_size(request, limits)
    _check_ids("token_ids", request.prompt, limits)
    _within("max_draft_tokens", request.max_draft_tokens, 0, limits.max_draft_tokens)
    _within("n", request.n, 1, limits.max_batch_size)
    for field in ("logprobs", "prompt_logprobs"):
        count = getattr(request, field)
        if count is not None:
            _within(field, count, 0, MAX_LOGPROBS)
    _check_sampling(request, limits)


def _check_size(request: Request, limits: Limits) -> None:
    """An output must fit in the pool alone, or preemption would never end."""
    size, room = len(request.prompt) + request.max_tokens, min(limits.max_context_tokens, limits.kv_cache_tokens)
    if size > room:
        raise PromptTooLong(
            f"{len(request.prompt)} prompt tokens and max_tokens {request.max_tokens} exceed {room} positions"
        )


def _check_sampling(request: Request, limits: Limits) -> None:
    sampling = request.sampling
    _within("min_tokens", sampling.min_tokens, 0, request.max_tokens)
    _check_ids("logit_bias", [token for token, _ in sampling.logit_bias], limits)
    for word in sampling.bad_words:
        if not word:
            raise InvalidField("bad_words", "an empty sequence", "sequences of at least one token")
        _check_ids("bad_words", word, limits)


def _check_ids(field: str, ids: Sequence[int], limits: Limits) -> None:
    low, high = min(ids, default=0), max(ids, default=0)
    if not 0 <= low <= high < limits.vocabulary_size:
        raise InvalidField(field, f"{low}..{high}", f"0..{limits.vocabulary_size - 1}")


def _within(field: str, value: int, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        raise InvalidField(field, value, f"{low} or more" if high is None else f"{low}..{high}")
