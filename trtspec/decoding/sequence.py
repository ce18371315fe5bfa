"""One output being generated: the scheduler's own mutable record."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.types import Finish, FinishReason, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one output of one request."""

    sequence_id: int
    request: Request
    choice: int = 0
    tokens: list[int] = field(default_factory=list)
    """Prompt and output; the last one is not cached yet while decoding."""
    started: bool = False
    """`Started` was published."""

    @property
    def order(self) -> tuple[int, int]:
        """Sorts by priority, then arrival."""
        return (-self.request.priority, self.sequence_id)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_tokens - self.generated

    def overdue(self, now: float) -> bool:
        return self.request.deadline is not None and now >= self.request.deadline

    def ending(self, emitted: list[int]) -> tuple[int, Finish] | None:
        """Where a run of new tokens ends the output: how many are kept, and why. A stop beats LENGTH."""
        for index, token in enumerate(emitted[: self.remaining]):
            if token in self.request.eos_ids:
                return index + 1, Finish(FinishReason.EOS, token)
            if token in self.request.stop_ids:
                return index + 1, Finish(FinishReason.STOP, token)
        return (self.remaining, Finish(FinishReason.LENGTH)) if len(emitted) >= self.remaining else None
