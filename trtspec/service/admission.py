"""Who may come in: a bounded number of live requests with distinct ids, and nobody while the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.errors import Draining, DuplicateRequest, Overloaded
from trtspec.service.checks import shown
from trtspec.service.waiting import Cue, give, new_cue

MOST_TOKENIZE_CALLS = 16
"""Each holds a message of the largest size, and only a few threads encode."""


class Admission:
    """Live requests of one server. Use it from the event loop only."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._live: dict[str, Cue] = {}
        self._tokenizing = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self, request_id: str) -> Iterator[Cue]:
        """Hold a place for the life of a request. The cue says that the server wants it to end."""
        self._check_open()
        if request_id in self._live:
            raise DuplicateRequest(
                f"request_id {shown(request_id)} is in use by a live request; choose another or leave it empty",
                request_id=request_id,
            )
        _check_place(len(self._live), self._max_requests, "requests are live")
        cancelled = self._live[request_id] = new_cue()
        self._idle.clear()
        try:
            yield cancelled
        finally:
            del self._live[request_id]
            if not self._live:
                self._idle.set()

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

    def _check_open(self) -> None:
        if self._draining:
            raise Draining("the server is shutting down; send the request to another one")


def _check_place(taken: int, limit: int, what: str) -> None:
    if taken >= limit:
        raise Overloaded(f"{taken} {what} and {limit} is the limit; try again later", limit=str(limit))
