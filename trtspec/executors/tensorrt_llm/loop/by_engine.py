"""Verification by TensorRT-LLM: an engine that is compiled for drafts from outside is given one with each round.

It ends a round's request after one step, with the accepted tokens and one of its own. Greedy drafts are compared with
its best tokens. Of a sampled request it compares with a token that it draws, and where they differ draws a *second* one
(externalDraftTokensLayer.cpp), which favours what was drafted. Drafts with logits are accepted by the papers' rule
instead (Leviathan et al. 2023, section 2.3), which is exact for tokens that were drawn from those logits; ours were not
drawn but certain, and their logits say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from trtspec.errors import EngineFault
from trtspec.executors.tensorrt_llm.loop.verifier import Verdict, engine_fault, round_seed
from trtspec.executors.tensorrt_llm.request_arguments import ends, request_arguments, sampling_arguments
from trtspec.types import Request

_ENDED = "END_ID"


@dataclass(frozen=True, slots=True)
class EngineVerifier:
    """Implements `Verifier`."""

    request: Request
    output_index: int
    vocabulary: int
    logits_width: int
    """Of the runtime's rows of logits."""

    def arguments(self, tokens: Sequence[int], draft: Sequence[int], now: float) -> dict[str, Any]:
        """By the request's own rules; what they hold back at its beginning is as much less as was generated."""
        request, generated = self.request, len(tokens) - len(self.request.prompt)
        sampling = replace(request.sampling, min_tokens=max(request.sampling.min_tokens - generated, 0))
        asked = replace(request, prompt=tuple(tokens), max_tokens=len(draft) + 1, sampling=sampling)
        seed = round_seed(request.seed, self.output_index, len(tokens))
        made = request_arguments(asked, self.output_index, now) | {
            "streaming": False,
            "sampling_config": sampling_arguments(sampling, seed, len(request.prompt)),
        }
        if draft:
            width = None if sampling.greedy else self.logits_width
            made["external_draft_tokens_config"] = {"tokens": list(draft), "certain": width}
        return made

    def read(self, tokens: Sequence[int], draft: Sequence[int], result: Any) -> Verdict:
        """The end of the text is not among the tokens of a round that it ended."""
        emitted, reason = [int(token) for token in result.output_token_ids[0]], result.finish_reasons[0].name
        if (wrong := engine_fault(emitted, self.vocabulary)) is not None:
            return Verdict((), 0, fault=wrong)
        if reason == _ENDED:
            emitted += [] if (end := ends(self.request)[0]) is None else [end]
        if not emitted:
            return Verdict((), 0, fault=EngineFault(f"the engine ended a round without any token ({reason})"))
        accepted = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(draft, emitted, strict=False))))
        return Verdict(emitted, accepted, doubt=_doubt(result, accepted))

    def close(self) -> None:
        """Nothing is kept."""


def _doubt(result: Any, accepted: int) -> str | None:
    """Of a round that no end cut short."""
    metrics = result.request_perf_metrics
    if metrics is None or result.finish_reasons[0].name != "NOT_FINISHED":
        return None
    counted = metrics.speculative_decoding.total_accepted_draft_tokens
    return f"{accepted} drafted tokens came, and the runtime accepted {counted}" if counted != accepted else None
