"""An executor that stands before another one and lets in what its limits allow, over all front-ends and clients.

It orders nothing: what it lets in is with the engine at once, whose scheduler knows priorities. What it refuses leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from trtspec.errors import QueueTimeout
from trtspec.executors.around import ExecutorAround
from trtspec.executors.base import Executor
from trtspec.service.options import AdmissionOptions
from trtspec.service.places import Places, QueueLimits
from trtspec.service.quotas import Client, ClientLimits, Clients
from trtspec.types import Request, RequestEvent, StepOutput


@dataclass(frozen=True, slots=True)
class GateLimits:
    """All that a gate bounds."""

    queue: QueueLimits
    clients: ClientLimits = ClientLimits()
    queue_seconds: float = 0.0
    """Longest wait for `Started`; 0 is no bound."""

    @classmethod
    def of(cls, options: AdmissionOptions, max_batch_size: int) -> GateLimits:
        """As an operator set them."""
        return cls(
            QueueLimits(max_batch_size, options.max_queued_requests, options.max_queued_tokens),
            ClientLimits(
                options.max_client_requests, options.client_requests_per_minute, options.client_tokens_per_minute
            ),
            options.queue_seconds,
        )


class GatedExecutor(ExecutorAround):
    """Implements `Executor`."""

    def __init__(self, executor: Executor, limits: GateLimits, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(executor)
        self._queue_seconds = limits.queue_seconds
        self._places = Places(limits.queue)
        self._clients = Clients(limits.clients)
        self._clock = clock

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        """Raises what the executor does, and `Overloaded`, `QueueTimeout`, `ClientBusy` and `RateLimited`."""
        with _Pass(request, self._places, self._clients, self._clock) as held:
            events = self._executor.generate(request)
            try:
                first = await self._first(events)
                if first is None:
                    return
                held.start()
                yield first
                async for event in events:
                    held.count(event)
                    yield event
            finally:
                await events.aclose()

    async def _first(self, events: AsyncGenerator[RequestEvent, None]) -> RequestEvent | None:
        """The event that ends the wait."""
        if not self._queue_seconds:
            return await anext(events, None)
        try:
            return await asyncio.wait_for(_next(events), self._queue_seconds)
        except asyncio.TimeoutError:
            raise QueueTimeout(
                f"the request waited {self._queue_seconds:g} s for a place in the batch, which is the limit; try again "
                "later",
                limit=f"{self._queue_seconds:g}",
            ) from None


async def _next(events: AsyncGenerator[RequestEvent, None]) -> RequestEvent | None:
    return await anext(events, None)


class _Pass:
    """What one request holds while it lives."""

    def __init__(self, request: Request, places: Places, clients: Clients, clock: Callable[[], float]) -> None:
        self._prompt_tokens = len(request.prompt)
        self._name = request.client
        self._outputs = request.n
        self._places = places
        self._clients = clients
        self._clock = clock
        self._started = False
        self._client: Client | None = None

    def __enter__(self) -> _Pass:
        self._places.wait(self._prompt_tokens)
        try:
            self._client = self._clients.enter(self._name, self._prompt_tokens, self._clock())
        except BaseException:
            self._places.go(self._prompt_tokens)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._client is not None
        self._client.leave()
        if self._started:
            self._places.running_outputs -= self._outputs
        else:
            self._places.go(self._prompt_tokens)
            self._client.use(-self._prompt_tokens, self._clock())  # nobody computed the prompt

    def start(self) -> None:
        """The request left the queue."""
        self._started = True
        self._places.go(self._prompt_tokens)
        self._places.running_outputs += self._outputs

    def count(self, event: RequestEvent) -> None:
        """Tokens go to the client's account; an output that ended takes no place in the batch any more."""
        if isinstance(event, StepOutput) and self._client is not None:
            self._client.use(len(event.token_ids), self._clock())
            if event.finish:
                self._outputs -= 1
                self._places.running_outputs -= 1
