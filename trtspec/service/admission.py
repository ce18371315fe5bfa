"""Who may come in, before a request is worked on: so many requests and bytes, with distinct ids, and nobody while the
server drains.

It bounds what this process holds. What is bounded over all front-ends is `gate`'s matter, whose refusals of a client
are remembered here, so that the next ones cost nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trtspec.errors import Draining, DuplicateRequest, Overloaded, RateLimited
from trtspec.service.checks import shown
from trtspec.service.options import AdmissionOptions
from trtspec.service.quotas import check_live, rate_limited
from trtspec.service.waiting import Cue, give, new_cue

MOST_TOKENIZE_CALLS = 16
"""Each holds a message of the largest size, and only a few threads encode."""
_QUEUED_MESSAGES = 16
_MOST_CLOSED = 1024
"""Clients whose refusal is remembered."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What one process holds at most; 0 is no bound of bytes and of a client's requests."""

    requests: int
    waiting_bytes: int = 0
    client_requests: int = 0

    @classmethod
    def of(cls, options: AdmissionOptions, max_batch_size: int, message_bytes: int) -> AdmissionLimits:
        """As an operator set them, for messages of at most this size."""
        return cls(
            requests=max_batch_size + options.max_queued_requests,
            waiting_bytes=options.max_queued_bytes or _QUEUED_MESSAGES * message_bytes,
            client_requests=options.max_client_requests,
        )


class Place:
    """What a live request holds."""

    def __init__(self, cancelled: Cue, release: Callable[[], None]) -> None:
        self.cancelled = cancelled
        """Given when the server wants the request to end."""
        self._release = release
        self._waits = True

    def start(self) -> None:
        """The request left the queue: its message counts no more. Safe to repeat."""
        if self._waits:
            self._waits = False
            self._release()


class Admission:
    """Live requests of one process. Use it from the event loop only."""

    def __init__(self, limits: AdmissionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._live: dict[str, Cue] = {}
        self._by_client: Counter[str] = Counter()
        self._waiting_bytes = 0
        self._closed: dict[str, float] = {}
        """When clients will be let in again."""
        self._tokenizing = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self, request_id: str, client: str = "", message_bytes: int = 0) -> Iterator[Place]:
        """Hold a place for the life of a request."""
        self._check_open()
        if request_id in self._live:
            raise DuplicateRequest(
                f"request_id {shown(request_id)} is in use by a live request; choose another or leave it empty",
                request_id=request_id,
            )
        _check_place(len(self._live), self._limits.requests, "requests are live")
        self._check_bytes(message_bytes)
        check_live(self._by_client[client], self._limits.client_requests)
        self._check_closed(client)
        place = Place(new_cue(), lambda: self._hold(-message_bytes))
        self._live[request_id] = place.cancelled
        self._by_client[client] += 1
        self._hold(message_bytes)
        self._idle.clear()
        try:
            yield place
        except RateLimited as error:
            self._close(client, float(error.details["closed_seconds"]))
            raise
        finally:
            place.start()
            self._leave(request_id, client)

    @contextmanager
    def tokenize(self) -> Iterator[None]:
        """Hold a place for a Tokenize call. They take none from requests, and an ending server waits for requests."""
        self._check_open()
        _check_place(self._tokenizing, MOST_TOKENIZE_CALLS, "Tokenize calls are live")
        self._tokenizing += 1
        try:
            yield
        finally:
            self._tokenizing -= 1

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Admit nobody from now on."""
        self._draining = True

    def cancel_all(self) -> None:
        """Tell every live request to end."""
        for cancelled in self._live.values():
            give(cancelled)

    async def wait_idle(self) -> None:
        """Return when no request is live."""
        await self._idle.wait()

    def _leave(self, request_id: str, client: str) -> None:
        del self._live[request_id]
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]
        if not self._live:
            self._idle.set()

    def _hold(self, message_bytes: int) -> None:
        self._waiting_bytes += message_bytes

    def _check_open(self) -> None:
        if self._draining:
            raise Draining("the server is shutting down; send the request to another one")

    def _check_bytes(self, message_bytes: int) -> None:
        """One that waits alone is let in whatever its size: it would never find more room."""
        limit, held = self._limits.waiting_bytes, self._waiting_bytes
        if limit and held and held + message_bytes > limit:
            raise Overloaded(
                f"requests of {held} bytes wait, this one has {message_bytes}; {limit} is the limit; try again later",
                limit=str(limit),
            )

    def _check_closed(self, client: str) -> None:
        if (left := self._closed.get(client, 0.0) - self._clock()) > 0:
            raise rate_limited("this client has used up its minute", left, left)

    def _close(self, client: str, seconds: float) -> None:
        """Remember that nothing of a client is let in for a while. To forget it costs work and lets nobody in."""
        now = self._clock()
        if len(self._closed) >= _MOST_CLOSED:
            self._closed = {name: until for name, until in self._closed.items() if until > now}
        if seconds > 0 and len(self._closed) < _MOST_CLOSED:
            self._closed[client] = now + seconds


def _check_place(taken: int, limit: int, what: str) -> None:
    if taken >= limit:
        raise Overloaded(f"{taken} {what} and {limit} is the limit; try again later", limit=str(limit))
