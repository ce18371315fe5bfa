"""An executor that stands before another one: a base for those that count, bound or choose.

It passes everything on; a class of it changes what it is for, which mostly is `generate`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from trtspec.executors.base import Executor
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineInfo, EngineStats, Health, Request, RequestEvent


class ExecutorAround:
    """Implements `Executor` by the one behind it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        return self._executor.generate(request)

    def info(self) -> EngineInfo:
        return self._executor.info()

    async def stats(self) -> EngineStats:
        return await self._executor.stats()

    def health(self) -> Health:
        return self._executor.health()

    async def wait_for_change(self, health: Health) -> Health:
        return await self._executor.wait_for_change(health)

    def cancel(self, request_id: str) -> bool:
        return self._executor.cancel(request_id)

    def speculation_limit(self) -> SpeculationLimit:
        return self._executor.speculation_limit()

    async def limit_speculation(self, limit: SpeculationLimit) -> SpeculationLimit:
        return await self._executor.limit_speculation(limit)

    async def wait_for_limit(self, limit: SpeculationLimit) -> SpeculationLimit:
        return await self._executor.wait_for_limit(limit)

    async def aclose(self) -> None:
        await self._executor.aclose()
