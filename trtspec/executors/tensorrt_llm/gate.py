"""The last check before a request is enqueued: TensorRT-LLM would ignore what its mode lacks, or end all requests."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.capabilities import Support, capabilities
from trtspec.decoding.checks import check_request
from trtspec.errors import InvalidField, PromptTooLong, SpeculationRefused, Unsupported
from trtspec.types import EngineInfo, Request

MOST_TOP_K = 1024
"""The runtime clips top_k to it without a word."""
_SPECULATION = ("speculation_off", "max_draft_tokens")


def check(request: Request, info: EngineInfo, max_prompt_tokens: int) -> None:
    """Raises a `RequestError` for what this engine cannot hold, or what the table of capabilities refuses."""
    check_request(request, info.limits)
    if len(request.prompt) > max_prompt_tokens:
        raise PromptTooLong(f"{len(request.prompt)} prompt tokens exceed the {max_prompt_tokens} of this engine")
    if request.sampling.top_k > MOST_TOP_K:
        raise InvalidField("sampling.top_k", request.sampling.top_k, f"0 to {MOST_TOP_K}")
    table, lacks = capabilities(info.method, info.flow, info.acceptance), dict(info.lacks)
    for feature in used_features(request, info):
        if feature in lacks:
            raise Unsupported(f"{feature}: {lacks[feature]}", feature=feature)
        if (found := table[feature]).support is Support.REFUSED:
            kind = SpeculationRefused if feature in _SPECULATION else Unsupported
            raise kind(f"{feature}: {found.reason}", feature=feature)


def used_features(request: Request, info: EngineInfo) -> Iterator[str]:
    """Features of the table that a resolved request uses, by what it holds and not by what its client wrote."""
    sampling = request.sampling
    if not sampling.greedy:
        yield "temperature"
        yield from (name for name, used in _truncations(request) if used)
    for name, neutral in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)):
        if getattr(sampling, name) != neutral:
            yield name
    for name in ("logit_bias", "bad_words", "min_tokens"):
        if getattr(sampling, name):
            yield name
    yield from (name for name in ("logprobs", "prompt_logprobs") if getattr(request, name) is not None)
    if request.guide is not None:
        yield "guided_decoding"
    if request.priority:
        yield "priority"
    most = info.limits.max_draft_tokens
    if most and request.max_tokens > 1 and request.max_draft_tokens < most:
        yield "max_draft_tokens" if request.max_draft_tokens else "speculation_off"


def _truncations(request: Request) -> Iterator[tuple[str, bool]]:
    sampling = request.sampling
    yield "top_k", sampling.top_k > 0
    yield "top_p", sampling.top_p < 1
    yield "min_p", sampling.min_p > 0
