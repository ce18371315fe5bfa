"""A scripted engine whose passes take no time: the next one begins when every live request has taken its event.

So whoever reads it is the limit, and nothing is merged on the way. It knows neither servers nor their types.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

E = TypeVar("E")
Put = Callable[[int], None]
"""Leaves the event of a pass, by its number, for the reader of a request."""


class Passes:
    """Gives each live request its next event, all of them in one turn of the event loop, as an engine's report does."""

    def __init__(self) -> None:
        self._numbers: dict[Put, int] = {}
        self._waiting: set[Put] = set()

    async def read(self, put: Put, events: AsyncGenerator[E, None]) -> AsyncGenerator[E, None]:
        """Pass on the events of a request, which is live until this is closed."""
        self._numbers[put] = 0
        try:
            self._wait(put)
            async for event in events:
                yield event
                self._wait(put)
        finally:
            del self._numbers[put]
            self._waiting.discard(put)
            self._begin()
            await events.aclose()

    def _wait(self, put: Put) -> None:
        self._waiting.add(put)
        self._begin()

    def _begin(self) -> None:
        if self._ready:
            asyncio.get_running_loop().call_soon(self._pass)

    @property
    def _ready(self) -> bool:
        return 0 < len(self._waiting) == len(self._numbers)

    def _pass(self) -> None:
        if self._ready:  # no request came meanwhile
            self._waiting.clear()
            for put, number in self._numbers.items():
                self._numbers[put] = number + 1
                put(number)
