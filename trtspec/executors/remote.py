"""An executor that lives in another process, which holds it for several front-ends: the other end of a `Hub`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial

from trtspec.errors import EngineLost
from trtspec.executors.channel import Channel
from trtspec.executors.condition import Condition
from trtspec.executors.hub_messages import AskStats, Events, Joined, Limited, Reading, Run, Turned, Welcome
from trtspec.executors.limiting import LimitControl
from trtspec.executors.messages import Command, Submit
from trtspec.executors.streams import RequestStreams
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineInfo, EngineStats, Health, Request, RequestEvent


class RemoteExecutor:
    """Implements `Executor` over a channel to a hub. Made by `join`, on the event loop that uses it."""

    def __init__(self, channel: Channel, welcome: Welcome) -> None:
        self._channel = channel
        self._info = welcome.info
        self._condition = Condition(welcome.health)
        self._streams = RequestStreams()
        self._limits = LimitControl(welcome.info, welcome.limit)
        self._readings: deque[asyncio.Future[EngineStats]] = deque()
        self._receiving = asyncio.create_task(self._receive(), name="trtspec-remote")

    @classmethod
    async def join(cls, channel: Channel) -> RemoteExecutor:
        """Wait until the hub's executor is open. Raises `EngineLost` where the hub is gone before that."""
        channel.send(Joined())
        welcome = await channel.receive()
        if not isinstance(welcome, Welcome):
            raise EngineLost("the main process ended before the engine was open")
        return cls(channel, welcome)

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        self._check()
        events = self._streams.run(request, partial(self._send, request))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def info(self) -> EngineInfo:
        return self._info

    async def stats(self) -> EngineStats:
        self._check()
        reading: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._readings.append(reading)
        self._channel.send(AskStats())
        return await reading

    def health(self) -> Health:
        return self._condition.health

    async def wait_for_change(self, health: Health) -> Health:
        return await self._condition.wait_for_change(health)

    def cancel(self, request_id: str) -> bool:
        return self._streams.cancel(request_id, self._channel.send)

    def speculation_limit(self) -> SpeculationLimit:
        return self._limits.in_force

    async def limit_speculation(self, limit: SpeculationLimit) -> SpeculationLimit:
        self._check()
        return await self._limits.impose(limit, self._channel.send, self._lost)

    async def wait_for_limit(self, limit: SpeculationLimit) -> SpeculationLimit:
        return await self._limits.wait_for_change(limit)

    async def aclose(self) -> None:
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        await self._end("the engine was closed")
        await self._channel.close()

    async def _lost(self) -> None:
        """Wait until the engine is lost, also for a moment only."""
        if self._condition.health is Health.SERVING:
            await self._condition.wait_for_change(Health.SERVING)

    def _check(self) -> None:
        if self._condition.health is Health.FAILED:
            raise EngineLost("the engine is failed")

    def _send(self, request: Request, command: Command) -> None:
        """Pass a command of the streams on; a request goes with the id that it has for all front-ends."""
        self._channel.send(Run(command.request.request_id, request) if isinstance(command, Submit) else command)

    async def _receive(self) -> None:
        """Deliver what the hub tells until it is gone or closes."""
        while True:
            match await self._channel.receive():
                case Events(events):
                    self._streams.deliver(events)
                case Reading(stats):
                    if not (reading := self._readings.popleft()).done():
                        reading.set_result(stats)
                case Turned(health):
                    await self._condition.become(health)
                case Limited(limit):
                    self._limits.report(limit)
                case _:
                    return await self._end("the main process is gone")

    async def _end(self, reason: str) -> None:
        """Nothing comes any more: end all who wait."""
        self._streams.fail_all(reason)
        for reading in self._readings:
            if not reading.done():
                reading.set_exception(EngineLost(reason))
        await self._condition.become(Health.FAILED)
