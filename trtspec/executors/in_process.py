"""An executor whose engine runs in a thread of this process: for tests and for smoke generation by builders."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from queue import SimpleQueue

from trtspec.errors import EngineLost
from trtspec.executors.limiting import LimitControl
from trtspec.executors.messages import Close, Command, Report
from trtspec.executors.opened import Opened
from trtspec.executors.streams import RequestStreams
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineInfo, EngineStats, Health, Request, RequestEvent

_log = logging.getLogger(__name__)


class InProcessExecutor:
    """Implements `Executor`. Must be made on the event loop that uses it."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._stats = opened.stats()
        self._streams = RequestStreams()
        self._limits = LimitControl(opened.info)
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._health = Health.SERVING
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="trtspec-engine", daemon=True)
        self._thread.start()

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        if self._health is not Health.SERVING:
            raise EngineLost("the engine is not running")
        events = self._streams.run(request, self._inbox.put)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def info(self) -> EngineInfo:
        return self._opened.info

    async def stats(self) -> EngineStats:
        return self._stats

    def health(self) -> Health:
        return self._health

    async def wait_for_change(self, health: Health) -> Health:
        if self._health is health:
            await self._ended.wait()
        return self._health

    def cancel(self, request_id: str) -> bool:
        return self._streams.cancel(request_id, self._inbox.put)

    def speculation_limit(self) -> SpeculationLimit:
        return self._limits.in_force

    async def limit_speculation(self, limit: SpeculationLimit) -> SpeculationLimit:
        if self._health is not Health.SERVING:
            raise EngineLost("the engine is not running")
        return await self._limits.impose(limit, self._inbox.put, self._ended.wait)

    async def wait_for_limit(self, limit: SpeculationLimit) -> SpeculationLimit:
        return await self._limits.wait_for_change(limit)

    async def aclose(self) -> None:
        self._end("the engine was closed")
        self._inbox.put(Close())
        await asyncio.to_thread(self._thread.join)
        self._opened.check()

    def _run(self) -> None:
        """The engine's thread. A bug in the engine ends the requests, as a crashed worker would."""
        try:
            self._opened.run(self._inbox, self._publish)
        except Exception as error:  # whatever it is, requests must not wait for ever
            _log.exception("the engine failed")
            self._loop.call_soon_threadsafe(self._end, f"the engine failed: {error!r}")

    def _publish(self, report: Report) -> None:
        self._loop.call_soon_threadsafe(self._receive, report)

    def _receive(self, report: Report) -> None:
        self._stats = report.stats
        self._limits.report(report.stats.limit)
        self._streams.deliver(report.events)

    def _end(self, reason: str) -> None:
        self._health = Health.FAILED
        self._ended.set()
        self._streams.fail_all(reason)
