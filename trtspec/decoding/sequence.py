"""One output being generated: the scheduler's own mutable record."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from trtspec.decoding.prefix_index import BlockNames
from trtspec.types import Finish, FinishReason, Request, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one output of one request."""

    sequence_id: int
    request: Request
    arrival: int
    """Counts requests."""
    choice: int
    tokens: list[int]
    """Prompt and output; the last one is not cached yet while decoding."""
    names: BlockNames
    """Of the blocks of `tokens`."""
    readable: tuple[BlockNames, ...] = ()
    """Other names under which others' blocks serve it as well."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Those of the first so many tokens of the prompt, while they are being scored."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts by priority, then arrival, then choice."""
        return (-self.request.priority, self.arrival, self.choice)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_tokens - self.generated

    @property
    def scores_prompt(self) -> bool:
        """Log-probabilities of its prompt are still to be told, so that every position must be computed."""
        return self.request.prompt_logprobs is not None and self.choice == 0 and self.generated == 0

    def score_prompt(self, start: int, scored: tuple[TokenLogprobs, ...]) -> None:
        """Keep what a pass tells of the prompt from position `start` on; work that is done again replaces the old."""
        del self.prompt_logprobs[start + 1 if start else 0 :]
        self.prompt_logprobs += scored

    def ending(self, emitted: list[int], completed: int | None = None) -> tuple[int, Finish] | None:
        """Where a run of new tokens ends the output. After `completed` of them its guide does at the latest."""
        found = ending(self.request, self.remaining, emitted)
        if completed is None or completed > self.remaining:
            return found
        if found is None or found[0] > completed or found[1].reason is FinishReason.LENGTH:
            return completed, Finish(FinishReason.STOP)
        return found


def ending(request: Request, remaining: int, emitted: Tokens[int]) -> tuple[int, Finish] | None:
    """Where a run of new tokens ends an output: how many are kept, and why. A stop beats LENGTH."""
    for index, token in enumerate(emitted[:remaining]):
        if token in request.eos_ids:
            return index + 1, Finish(FinishReason.EOS, token)
        if token in request.stop_ids:
            return index + 1, Finish(FinishReason.STOP, token)
    return (remaining, Finish(FinishReason.LENGTH)) if len(emitted) >= remaining else None
