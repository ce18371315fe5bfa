"""An executor whose engine lives in a child process, and the care for that process.

Sticky device errors, aborts in native code and a busy interpreter stay in the child. When it dies, or stalls and is
killed, its requests end with `EngineLost`, and a new one is started after a pause; too many deaths in short time end it
for good.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

from trtspec.config import EngineOptions
from trtspec.errors import EngineFault, EngineFolderError, EngineLost, TrtspecError
from trtspec.executors.child import CLOSE_GRACE_SECONDS, DEATH_GRACE_SECONDS, Child, ChildLost
from trtspec.executors.condition import Condition
from trtspec.executors.crashes import CrashHistory
from trtspec.executors.limiting import LimitControl
from trtspec.executors.messages import Command, Limit, Open, Ready, Report
from trtspec.executors.stall import StallWatch
from trtspec.executors.streams import RequestStreams
from trtspec.ranks import launched
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineInfo, EngineStats, Health, Request, RequestEvent

_log = logging.getLogger(__name__)

_NAME, _MODULE = "the engine's process", "trtspec.executors.worker"
_TOGETHER_SECONDS = 30.0
"""Time for an engine of several ranks to close: all of them take their part of it down."""
_PATIENCE = 2
"""So many times as long as an engine's own process waits for a sign of it."""


class WorkerExecutor:
    """Implements `Executor` over a worker process. Made by `start`, on the event loop that uses it."""

    def __init__(self, command: Open, child: Child, ready: Ready) -> None:
        self._open = command
        self._child = child
        self._info = ready.info
        self._stats = ready.stats
        self._streams = RequestStreams()
        self._limits = LimitControl(ready.info)
        self._crashes = CrashHistory()
        self._watch = StallWatch(_stall_seconds(ready.info, command.options))
        self._condition = Condition(Health.SERVING)
        self._care = asyncio.create_task(self._supervise(), name="trtspec-supervisor")

    @classmethod
    async def start(cls, directory: Path, options: EngineOptions) -> WorkerExecutor:
        """Start the child and wait until it is warm. Raises what the child could not open the folder for."""
        command = Open(directory, options)
        child = await Child.start(_NAME, _MODULE, command)
        try:
            return cls(command, child, await child.opened(Ready))
        except ChildLost as error:
            raise EngineFolderError(f"{directory}: {error}") from error
        except BaseException:
            await child.end(DEATH_GRACE_SECONDS)
            raise

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        if (health := self._condition.health) is not Health.SERVING:
            again = "" if health is Health.FAILED else "; try again"
            raise EngineLost(f"the engine is {health.value}{again}")
        if self._crashes.suspects(request, time.monotonic()):
            raise EngineFault("this request was in flight in two crashes of the engine; it is not tried again")
        events = self._streams.run(request, self._send)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def info(self) -> EngineInfo:
        return self._info

    async def stats(self) -> EngineStats:
        return self._stats

    def health(self) -> Health:
        return self._condition.health

    async def wait_for_change(self, health: Health) -> Health:
        return await self._condition.wait_for_change(health)

    def cancel(self, request_id: str) -> bool:
        return self._streams.cancel(request_id, self._send)

    def speculation_limit(self) -> SpeculationLimit:
        return self._limits.in_force

    async def limit_speculation(self, limit: SpeculationLimit) -> SpeculationLimit:
        if (health := self._condition.health) is not Health.SERVING:
            raise EngineLost(f"the engine is {health.value}")
        return await self._limits.impose(limit, self._send, partial(self._condition.wait_for_change, Health.SERVING))

    async def wait_for_limit(self, limit: SpeculationLimit) -> SpeculationLimit:
        return await self._limits.wait_for_change(limit)

    async def aclose(self) -> None:
        """Raises `TrtspecError` where other ranks would wait for ever: then this process must end with an error."""
        lost, size = self._condition.health is Health.FAILED, launched().size
        await self._condition.become(Health.FAILED)
        self._care.cancel()
        await asyncio.gather(self._care, return_exceptions=True)
        self._streams.fail_all("the engine was closed")
        await self._child.end(CLOSE_GRACE_SECONDS if size == 1 else _TOGETHER_SECONDS)
        if size > 1 and self._child.process.returncode and not lost:
            raise TrtspecError(f"{_NAME}, rank 0 of {size}, did not close in order ({self._child.fate})")

    def _send(self, command: Command) -> None:
        self._child.channel.send(command)

    async def _supervise(self) -> None:
        """Deliver what the child reports, and replace it when it dies. Whatever goes wrong here, requests end."""
        try:
            while self._condition.health is Health.SERVING:
                stalled = await self._attend()
                await self._recover(stalled)
        except Exception:
            _log.exception("the supervisor of the engine failed")
            await self._give_up("its supervisor failed")

    async def _attend(self) -> bool:
        """Pass reports on until the child is gone, or says nothing for too long; gives whether it stalled."""
        delivering = asyncio.create_task(self._deliver())
        watching = asyncio.create_task(self._watch.stalled(lambda: self._streams.live > 0))
        try:
            await asyncio.wait((delivering, watching), return_when=asyncio.FIRST_COMPLETED)
            if delivering.done():
                delivering.result()  # a mistake of ours is not kept quiet
            return not delivering.done()
        finally:
            for task in (delivering, watching):
                task.cancel()
            await asyncio.gather(delivering, watching, return_exceptions=True)

    async def _deliver(self) -> None:
        while isinstance(report := await self._child.channel.receive(), Report):
            self._watch.sign()
            self._stats = report.stats
            self._limits.report(report.stats.limit)
            self._streams.deliver(report.events)

    async def _recover(self, stalled: bool) -> None:
        """End what was in flight, then start children until one serves or their deaths are too many."""
        await self._condition.become(Health.RESTARTING)
        if stalled:
            self._lose(f"{_NAME} said nothing for {self._watch.seconds:g} s over its work and is killed")
        # Only now where it stalled: nobody need wait for the death of a process that hangs in its device's driver.
        await self._child.end(0 if stalled else DEATH_GRACE_SECONDS)
        if not stalled:
            self._lose(f"{_NAME} died ({self._child.fate})")
        self._stats = EngineStats()
        if (size := launched().size) > 1:
            return await self._give_up(f"it was rank 0 of {size}, which are started together; launch them again")
        while not self._crashes.exhausted:
            await asyncio.sleep(self._crashes.backoff_seconds)
            try:
                return await self._replace()
            except (ChildLost, OSError) as error:
                _log.error("%s", error)
                self._crashes.record(time.monotonic(), [])
            except TrtspecError as error:
                return await self._give_up(str(error))
        await self._give_up("it died too often")

    def _lose(self, fate: str) -> None:
        """End all requests, and remember those that may be the cause."""
        self._crashes.record(time.monotonic(), self._streams.in_flight)
        _log.error("%s; %d requests lost", fate, self._streams.live)
        self._streams.fail_all(fate)

    async def _replace(self) -> None:
        """Start another child on the same folder."""
        self._child = await Child.start(_NAME, _MODULE, self._open)
        ready = await self._child.opened(Ready)
        if ready.info.engine_id != self._info.engine_id:
            raise EngineFolderError(
                f"{self._open.directory} holds engine {ready.info.engine_id[:12]} now and is served as "
                f"{self._info.engine_id[:12]}; restart the server"
            )
        self._stats = ready.stats
        self._send(Limit(self._limits.kept))  # before any request
        await self._condition.become(Health.SERVING)

    async def _give_up(self, reason: str) -> None:
        _log.error("the engine is not started again: %s", reason)
        self._streams.fail_all(f"the engine is gone: {reason}")
        await self._condition.become(Health.FAILED)


def _stall_seconds(info: EngineInfo, options: EngineOptions) -> float:
    """An engine of ours reports each pass. TensorRT-LLM is looked after in its own process, which knows more of it;
    here a process that stands still as a whole is noticed, later than that."""
    if info.backend == "embedded":
        return options.embedded.stall_seconds
    return _PATIENCE * options.tensorrt_llm.stall_seconds
