"""One executor for several front-end processes, each on a channel of its own.

All requests of all front-ends pass here. So ids are unique, limits hold and the blame for crashes is kept over all of
them, by the rules of the executor that is shared. It does not know gRPC, nor who starts front-ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from trtspec.errors import EngineFault, RequestError
from trtspec.executors.base import Executor
from trtspec.executors.channel import Channel
from trtspec.executors.hub_messages import Answering, AskStats, Counted, Events, Limited, Reading, Run, Turned, Welcome
from trtspec.executors.messages import Cancel, Limit
from trtspec.executors.streams import named
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineEvent, Failed, Health, Request

_log = logging.getLogger(__name__)


class Hub:
    """Shares an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def serve(
        self, channel: Channel, answering: Callable[[], None], counted: Callable[[Counted], None] = lambda _: None
    ) -> int:
        """Serve a front-end until it is gone; gives how many of its requests were cancelled by that."""
        link = Link(self._executor, channel)
        async with link.open():
            while (command := await channel.receive()) is not None:
                if isinstance(command, Answering):
                    answering()
                elif isinstance(command, Counted):
                    counted(command)
                else:
                    await link.obey(command)
            return link.live


class Link:
    """The requests of one front-end, and what it has not been told yet."""

    def __init__(self, executor: Executor, channel: Channel) -> None:
        self._executor = executor
        self._channel = channel
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._limiting: set[asyncio.Task[None]] = set()
        self._events: list[EngineEvent] = []
        self._readings = 0
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def live(self) -> int:
        return len(self._requests)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Tell the front-end what happens; in the end nothing of its requests is left."""
        health, limit = self._executor.health(), self._executor.speculation_limit()
        self._channel.send(Welcome(self._executor.info(), health, limit))
        work = (self._report(), self._follow(health), self._follow_limit(limit))
        telling = [asyncio.create_task(item) for item in work]
        try:
            yield
        finally:
            for task in (tasks := [*telling, *self._limiting, *self._requests.values()]):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def obey(self, command: object) -> None:
        """Carry out a command; a cancelled request has left the executor when this returns."""
        match command:
            case Run(key, request):
                self._requests[key] = asyncio.create_task(self._run(key, request))
            case Cancel(key) if task := self._requests.pop(key, None):
                task.cancel()
                await asyncio.wait((task,))
            case Limit(limit):
                self._limiting.add(task := asyncio.create_task(self._limit(limit)))
                task.add_done_callback(self._limiting.discard)
            case AskStats():
                self._readings += 1
                self._due.set()

    async def _limit(self, limit: SpeculationLimit) -> None:
        """The front-end learns of what comes of it as all others do."""
        with contextlib.suppress(RequestError):
            await self._executor.limit_speculation(limit)

    async def _run(self, key: str, request: Request) -> None:
        """Run a request and pass on what comes, its error included."""
        try:
            async with aclosing(self._executor.generate(request)) as events:
                async for event in events:
                    await self._put(named(event, key))
        except RequestError as error:
            await self._put(Failed(key, error))
        except Exception as error:  # whatever it is, the front-end must not wait for ever
            _log.exception("a request failed")
            await self._put(Failed(key, EngineFault(f"the request failed: {error!r}")))
        except asyncio.CancelledError:
            if key in self._requests:  # it was not the front-end that asked for it; where it is gone, nobody is told
                self._events.append(Failed(key, EngineFault("the request was cancelled inside the server")))
                self._due.set()
            raise
        self._requests.pop(key, None)

    async def _put(self, event: EngineEvent) -> None:
        """Leave an event to be sent. Waits while the front-end is slow; the executor merges outputs meanwhile."""
        await self._room.wait()
        self._events.append(event)
        self._due.set()

    async def _report(self) -> None:
        """Send what there is, so that a pass costs one message whatever its batch."""
        while True:
            await self._due.wait()
            self._due.clear()
            readings, self._readings = self._readings, 0
            stats = await self._executor.stats()
            await asyncio.sleep(0)  # events that are as old as this reading are put now, and sent before it
            events, self._events = self._events, []
            if events:
                self._channel.send(Events(tuple(events)))
            for _ in range(readings):
                self._channel.send(Reading(stats))
            self._room.clear()
            await self._channel.drain()
            self._room.set()

    async def _follow_limit(self, limit: SpeculationLimit) -> None:
        """Tell the front-end every change of the limit."""
        while True:
            limit = await self._executor.wait_for_limit(limit)
            self._channel.send(Limited(limit))

    async def _follow(self, health: Health) -> None:
        """Tell the front-end every change of health."""
        while health is not Health.FAILED:
            health = await self._executor.wait_for_change(health)
            self._channel.send(Turned(health))
