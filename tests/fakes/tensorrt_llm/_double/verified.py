"""Drafts from outside, verified in one step that ends its request (externalDraftTokensLayer.cpp, llmRequest.cpp).

The double takes a pass for each token of such a step, and tells of none before the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tensorrt_llm._double.errors import assertion
from tensorrt_llm._double.sampling import Fatal, Refused
from tensorrt_llm._double.sequence import LENGTH, NOT_FINISHED, Sequence

from trtspec.types import Request, StepOutput

_CERTAIN = 1 - 1e-6


def drafted_tokens(request: Any) -> tuple[int, ...]:
    config = request.external_draft_tokens_config
    return () if config is None else tuple(config.tokens)


def check_logits(request: Any, width: int) -> None:
    """They are copied as they are, into rows of the engine's own logits."""
    config = request.external_draft_tokens_config
    if config is None or config.logits is None:
        return
    shape, dtype = tuple(config.logits.shape), str(config.logits.dtype)
    if shape != (len(config.tokens), width) or dtype != "torch.float32":
        raise Fatal(assertion(f"draft logits are {dtype} {shape}, and {len(config.tokens)} rows of {width} are copied"))


def are_certain(request: Any) -> bool:
    """Whether the draft came with logits; the double knows those alone that leave no doubt."""
    config = request.external_draft_tokens_config
    if config.logits is None:
        return False
    if config.acceptance_threshold is not None or config.fast_logits:
        raise Refused(assertion("the double has no acceptance threshold and no fast logits"))
    likely = config.logits.softmax(1)[range(len(config.tokens)), list(config.tokens)]
    if bool((likely < _CERTAIN).any()):
        raise Refused(assertion("the double accepts drafts that are certain by their logits, or have none"))
    return True


@dataclass
class Verified(Sequence):
    """Accepts the draft's tokens as far as they are those that are drawn.

    With logits a certain draft stays with the target's own probability of it, and what comes in its place is drawn from
    the rest: the token that was drawn does as well. Without them it is drawn once more, from the whole law.
    """

    draft: tuple[int, ...] = ()
    certain: bool = False
    drawn_again: bool = False

    def take(self, step: StepOutput) -> list[int]:
        """Nothing, until the round is over: then all of its tokens."""
        place = len(self.tokens)
        rejected = place < len(self.draft) and step.token_ids[0] != self.draft[place]
        if rejected and not (self.certain or self.asked.sampling.greedy or self.drawn_again):
            self.again, self.drawn_again = self._from_the_whole_law(), True
            return []
        super().take(step)
        self.over = rejected
        if rejected and self.reason == LENGTH and len(self.tokens) <= len(self.draft):
            self.reason = NOT_FINISHED
        self.iterations, self.drafted, self.accepted = 1, len(self.draft), max(len(self.tokens) - 1, 0)
        return self.tokens if self.finished else []

    def _from_the_whole_law(self) -> Request:
        asked, sampling = self.asked, self.asked.sampling
        return replace(
            asked,
            request_id=f"{self.key}+",
            prompt=(*asked.prompt, *self.tokens),
            max_tokens=1,
            seed=(asked.seed + 1) * 0x9E3779B97F4A7C15 % 2**64,
            sampling=replace(sampling, min_tokens=max(sampling.min_tokens - len(self.tokens), 0)),
        )
