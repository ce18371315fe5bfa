"""Which outputs are generated in rounds, and what an engine that does so tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from trtspec.decoding.edits import Editor
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.errors import Unsupported
from trtspec.executors.tensorrt_llm.answers import Answer
from trtspec.executors.tensorrt_llm.derived import Derived
from trtspec.executors.tensorrt_llm.loop.drafts import Drafts, EngineDrafts, NgramDrafts, NoDrafts
from trtspec.executors.tensorrt_llm.loop.rounds import Engine, Rounds
from trtspec.executors.tensorrt_llm.outputs import Output
from trtspec.speculative import SpeculativeConfig
from trtspec.types import EngineInfo, Method, Request


def told(info: EngineInfo, max_prompt_tokens: int) -> EngineInfo:
    """Passes are counted here, and a text ends where it can be no prompt of a round any more."""
    context = min(info.limits.max_context_tokens, max_prompt_tokens + 1)
    return replace(info, derived_statistics=False, limits=replace(info.limits, max_context_tokens=context))


def outputs(
    speculative: SpeculativeConfig, info: EngineInfo, *, refuses_full_vocabulary: bool
) -> Callable[[Request], Sequence[Output]]:
    """The maker of a request's outputs."""
    engine = Engine(
        drafts=_drafts(speculative),
        editor=Editor(),
        vocabulary=info.limits.vocabulary_size,
        longest=info.limits.max_context_tokens - 1,
    )
    ids = count()

    def make(request: Request) -> Sequence[Output]:
        if refuses_full_vocabulary and request.drafts and _never_decided(request):
            raise Unsupported(
                f"sampling.temperature is {request.sampling.temperature} without top_k, top_p or min_p, which no draft "
                "can help, and this server refuses that; set one of them, or speculation to off",
                feature="temperature",
            )
        if _needs_no_rounds(request):
            return [Answer(request, index, None, Derived(())) for index in range(request.n)]
        if _never_decided(request):
            request = replace(request, max_draft_tokens=0)
        return [Rounds(request, index, engine, next(ids)) for index in range(request.n)]

    return make


def _drafts(speculative: SpeculativeConfig) -> Drafts:
    config = speculative
    if config.method is Method.NONE:
        return NoDrafts()
    if config.method is Method.DRAFT_MODEL:
        return EngineDrafts()
    return NgramDrafts(NgramProposer(config.num_speculative_tokens, config.prompt_lookup_min, config.prompt_lookup_max))


def _never_decided(request: Request) -> bool:
    """Any token of the vocabulary can be drawn, so that the best logits of a position do not decide it."""
    return not (request.sampling.greedy or request.sampling.truncates)


def _needs_no_rounds(request: Request) -> bool:
    """The engine does as well by itself: no draft helps, nothing is told of positions, and its noise is as good.

    A sampled request whose tokens we can decide is decided by us with and without drafts, so that a seed gives the
    same text.
    """
    if request.logprobs is not None or request.sampling.min_tokens:
        return False
    return _never_decided(request) or (request.sampling.greedy and not request.drafts)
