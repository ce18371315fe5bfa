"""What every backend offers: requests in, events out.

The cut is at the request and not at the pass, because TensorRT-LLM batches, drafts and verifies inside itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineInfo, EngineStats, Health, Request, RequestEvent


class Executor(Protocol):
    """An engine that is open, or being reopened after a crash."""

    def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        """Run a request: first `Started`, then `StepOutput`s, the last one of each output with `finish`.

        Closing the iterator cancels the request. A reader that falls behind gets merged outputs.
        Raises a `RequestError`, such as `DuplicateRequest`, `EngineLost` or `EngineFault`.
        """
        ...

    def info(self) -> EngineInfo:
        """What is served; known once the executor is open."""
        ...

    async def stats(self) -> EngineStats:
        """A reading of the engine between two passes."""
        ...

    def health(self) -> Health:
        """Whether requests are answered at this moment."""
        ...

    async def wait_for_change(self, health: Health) -> Health:
        """Return the new health as soon as it differs from `health`."""
        ...

    def cancel(self, request_id: str) -> bool:
        """End a live request: each of its outputs that live ends with CANCELLED. False where there is none."""
        ...

    def speculation_limit(self) -> SpeculationLimit:
        """What bounds the drafts of all requests, new ones and those that run."""
        ...

    async def limit_speculation(self, limit: SpeculationLimit) -> SpeculationLimit:
        """Bound the drafts of all requests from now on, and return what is in force. The text of none changes.

        A request that begins while speculation is off is decoded plainly to its end; one that runs goes on without
        drafts, and may draft again later. Raises `SpeculationRefused` where the engine cannot do that, `InvalidField`
        beyond its depth, and `EngineLost`.
        """
        ...

    async def wait_for_limit(self, limit: SpeculationLimit) -> SpeculationLimit:
        """Return the limit in force as soon as it differs from `limit`."""
        ...

    async def aclose(self) -> None:
        """End every live request with `EngineLost` and free the engine; safe to call twice."""
        ...
