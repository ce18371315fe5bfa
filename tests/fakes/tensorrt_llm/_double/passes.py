"""What is told of passes, and who is told."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, Protocol

from tensorrt_llm._double.sequence import Group, Sequence

from trtspec.types import PassRecord, StepOutput


@dataclass(frozen=True)
class Pass:
    """One pass, for statistics."""

    number: int
    latency: float
    queue_latency: float
    """Of all that joined."""
    joined: int
    active: int
    queued: int
    completed: int
    context_rows: int
    context_tokens: int
    decoded: tuple[PassRecord, ...]
    """What the pass did for each output that decoded."""

    @property
    def drafting(self) -> tuple[PassRecord, ...]:
        """Those that had a draft."""
        return tuple(record for record in self.decoded if record.drafted)


class Listener(Protocol):
    """Called from the loop's thread."""

    def stepped(self, sequence: Sequence, new: list[int], iteration: int) -> None:
        """New tokens, or the end, or both."""
        ...

    def failed(self, group: Group, text: str) -> None:
        """The end of a request."""
        ...

    def passed(self, facts: Pass) -> None:
        """After everything else of the pass."""
        ...


def rows_of(plan: Any) -> tuple[int, int]:
    """Prompts that a pass reads of, and how many of their tokens."""
    context = [row for row in plan.rows if row.prefill] if plan is not None else []
    return len(context), sum(row.fed for row in context)


def decoded(events: Items[Any]) -> tuple[PassRecord, ...]:
    records = [event.passes[0] for event in events if isinstance(event, StepOutput) and event.passes]
    return tuple(record for record in records if not record.prefill)
