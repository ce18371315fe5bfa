"""One output of a request while it runs: what each step adds, and where it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trtspec.types import FinishReason, Request, StepOutput

NOT_FINISHED, END_ID, STOP_WORDS = "NOT_FINISHED", "END_ID", "STOP_WORDS"
LENGTH, TIMED_OUT, CANCELLED = "LENGTH", "TIMED_OUT", "CANCELLED"
"""Names of finish reasons."""


@dataclass
class Sequence:
    """What a request made of it, and what came of it so far."""

    group: Group
    index: int
    asked: Request
    """As our engine has it."""
    stop_words: tuple[tuple[int, ...], ...]
    step_drafts: int
    """Draft tokens that each step after the first counts."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    iterations: int = 0
    drafted: int = 0
    accepted: int = 0
    reason: str = NOT_FINISHED
    over: bool = False
    """It ends here, whatever the reason says."""
    again: Request | None = None
    """What is drawn once more, in place of the token that was taken last."""

    @property
    def key(self) -> str:
        return self.asked.request_id

    @property
    def finished(self) -> bool:
        return self.over or self.reason != NOT_FINISHED

    def take(self, step: StepOutput) -> list[int]:
        """Add a step's tokens, up to where the output ends; returns those that were added."""
        self.iterations += 1
        record = step.passes[0]
        if self.step_drafts and not record.prefill:
            self.drafted += self.step_drafts
            self.accepted += record.emitted - 1
        kept = list(step.token_ids)
        if (stop := self._stop(kept)) is not None:
            kept, self.reason = kept[:stop], STOP_WORDS
        elif step.finish is not None and step.finish.reason is FinishReason.EOS:
            kept, self.reason = kept[:-1], END_ID  # it is never told
        elif step.finish is not None:
            self.reason = LENGTH
        self.tokens += kept
        self.logprobs += [item.chosen.logprob or 0.0 for item in step.logprobs][: len(kept)]
        self.logprobs += [0.0] * (len(self.tokens) - len(self.logprobs))
        return kept

    def _stop(self, new: list[int]) -> int | None:
        """How many of the new tokens are kept up to and with the first stop word."""
        text = self.tokens + new
        for count in range(1, len(new) + 1):
            said = text[: len(self.tokens) + count]
            if any(tuple(said[-len(word) :]) == word for word in self.stop_words):
                return count
        return None


@dataclass
class Group:
    """A request: one output, or several that end it together."""

    id: int
    request: Any
    """As the caller made it."""
    count: int
    arrival: float
    sequences: list[Sequence] = field(default_factory=list)
    fatal: str | None = None
    """What the step that it joins fails with."""
    deadline: float | None = None
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    first_iteration: int = 0
    last_iteration: int = 0
    reused_tokens: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    new_blocks: int = 0

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self.sequences)


Admit = Callable[[Group], list[Sequence]]
"""What a request becomes; raises what `sampling` has for those that end with an error."""
