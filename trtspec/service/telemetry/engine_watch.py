"""The engine as the process that holds it sees it: readings of its state, and counters that outlive its crashes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from trtspec.executors.base import Executor
from trtspec.types import EngineStats, Health


class EngineWatch:
    """Follows one executor while it is open."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._last = EngineStats()
        self._passes_before = 0
        self._preemptions_before = 0
        self.restarts = 0

    @property
    def health(self) -> Health:
        return self._executor.health()

    @property
    def reading(self) -> EngineStats:
        """The last one."""
        return self._last

    @property
    def passes(self) -> int:
        return self._passes_before + self._last.passes

    @property
    def preemptions(self) -> int:
        return self._preemptions_before + self._last.preemptions

    async def read(self) -> EngineStats:
        """Take a reading. A new process of the engine counts from 0 again: what the old one had is kept."""
        stats = await self._executor.stats()
        if stats.passes < self._last.passes:
            self._passes_before += self._last.passes
            self._preemptions_before += self._last.preemptions
        self._last = stats
        return stats

    @contextlib.asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """Count restarts while the context lasts."""
        task = asyncio.create_task(self._count_restarts())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _count_restarts(self) -> None:
        health = self._executor.health()
        while health is not Health.FAILED:
            health = await self._executor.wait_for_change(health)
            self.restarts += health is Health.RESTARTING


def kv_usage(stats: EngineStats) -> float | None:
    """Share of the KV cache in use; None where the engine does not tell."""
    return 1 - stats.free_blocks / stats.total_blocks if stats.total_blocks else None
