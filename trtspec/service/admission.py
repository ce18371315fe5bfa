"""Who may come in: a bounded number of live requests with distinct ids, and nobody while the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.errors import Draining, DuplicateRequest, Overloaded
from trtspec.service.checks import shown


class Admission:
    """Live requests of one server. Use it from the event loop only."""

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._live: set[str] = set()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def live(self) -> int:
        return len(self._live)

    @contextmanager
    def admit(self, request_id: str) -> Iterator[None]:
        """Hold a place for the life of a request."""
        if self._draining:
            raise Draining("the server is shutting down; send the request to another one")
        if request_id in self._live:
            raise DuplicateRequest(
                f"request_id {shown(request_id)} is in use by a live request; choose another or leave it empty",
                request_id=request_id,
            )
        if len(self._live) >= self._max_requests:
            raise Overloaded(
                f"{len(self._live)} requests are live and {self._max_requests} is the limit; try again later",
                limit=str(self._max_requests),
            )
        self._live.add(request_id)
        self._idle.clear()
        try:
            yield
        finally:
            self._live.remove(request_id)
            if not self._live:
                self._idle.set()

    def drain(self) -> None:
        """Admit nobody from now on."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Return when no request is live."""
        await self._idle.wait()
