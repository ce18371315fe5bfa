"""Who waits for the engine, and how many may: counting over all front-ends, without clock, gRPC and engine."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.errors import Overloaded


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What may wait beside what the batch has room for."""

    batch_outputs: int
    """Outputs that are decoded together."""
    requests: int
    tokens: int = 0
    """Of prompts; 0 is no bound."""


class Places:
    """Counts requests that wait and outputs that run."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self.waiting = 0
        self.waiting_tokens = 0
        self.running_outputs = 0

    def wait(self, tokens: int) -> None:
        """A request comes to wait; raises `Overloaded` where it finds no place.

        Places in the batch count: a request that can run waits for the next pass all the same, and one that was
        pushed out of the batch waits again.
        """
        limits = self._limits
        too_many = self.waiting + self.running_outputs - limits.batch_outputs
        if too_many >= limits.requests:
            raise Overloaded(
                f"{too_many} requests wait for a place in the batch; {limits.requests} is the limit; try again later",
                limit=str(limits.requests),
            )
        # One that waits alone is let in whatever its length: it would never find more room.
        if limits.tokens and self.waiting and self.waiting_tokens + tokens > limits.tokens:
            raise Overloaded(
                f"requests with {self.waiting_tokens} prompt tokens wait, this one has {tokens}, and {limits.tokens} "
                "is the limit; try again later",
                limit=str(limits.tokens),
            )
        self.waiting += 1
        self.waiting_tokens += tokens

    def go(self, tokens: int) -> None:
        """A request waits no more."""
        self.waiting -= 1
        self.waiting_tokens -= tokens
