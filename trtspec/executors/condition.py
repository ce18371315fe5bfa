"""The health of an executor, and those who wait for it to change."""

from __future__ import annotations

import asyncio

from trtspec.types import Health


class Condition:
    """A health that changes on the event loop; one that failed stays failed."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self._changed = asyncio.Condition()

    async def become(self, health: Health) -> None:
        """Change health and tell who waits."""
        async with self._changed:
            if self.health is not Health.FAILED:
                self.health = health
                self._changed.notify_all()

    async def wait_for_change(self, health: Health) -> Health:
        """Return the new health as soon as it differs from `health`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.health is not health)
            return self.health
