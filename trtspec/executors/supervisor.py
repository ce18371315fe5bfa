"""An executor whose engine lives in a child process, and the care for that process.

Sticky device errors, aborts in native code and a busy interpreter stay in the child. When it dies, its requests end
with `EngineLost`, and a new one is started after a pause; too many deaths in short time end it for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from pathlib import Path

from trtspec.config import EngineOptions
from trtspec.errors import EngineFault, EngineFolderError, EngineLost
from trtspec.executors.crashes import CrashHistory
from trtspec.executors.messages import HEADER, Close, Command, Open, OpenFailed, Ready, Report, pack, unpack
from trtspec.executors.streams import RequestStreams
from trtspec.openmp import considerate
from trtspec.types import EngineInfo, EngineStats, Health, Request, RequestEvent

CLOSE_GRACE_SECONDS = 5.0
"""Time for the running pass to end when the executor is closed; then the child is killed."""

_log = logging.getLogger(__name__)


class WorkerExecutor:
    """Implements `Executor` over a worker process. Made by `start`, on the event loop that uses it."""

    def __init__(self, directory: Path, options: EngineOptions) -> None:
        self._open = Open(directory, options)
        self._streams = RequestStreams()
        self._crashes = CrashHistory()
        self._in_flight: dict[int, Request] = {}
        self._health = Health.STARTING
        self._changed = asyncio.Condition()
        self._stats = EngineStats()
        self._info: EngineInfo | None = None
        self._process: Process | None = None
        self._channel: asyncio.StreamWriter | None = None
        self._care: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, directory: Path, options: EngineOptions) -> WorkerExecutor:
        """Start the child and wait until it is warm. Raises what the child could not open the folder for."""
        executor = cls(directory, options)
        reader = await executor._spawn()
        executor._care = asyncio.create_task(executor._supervise(reader), name="trtspec-supervisor")
        return executor

    def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        if self._health is not Health.SERVING:
            raise EngineLost(f"the engine is {self._health.value}; try again")
        if self._crashes.suspects(request, time.monotonic()):
            raise EngineFault(
                "this request was in flight when the engine crashed, more than once; it is not tried again"
            )
        return self._run(request)

    def info(self) -> EngineInfo:
        assert self._info is not None, "set by the first start"
        return self._info

    async def stats(self) -> EngineStats:
        return self._stats

    def health(self) -> Health:
        return self._health

    async def wait_for_change(self, health: Health) -> Health:
        async with self._changed:
            await self._changed.wait_for(lambda: self._health is not health)
            return self._health

    async def aclose(self) -> None:
        if self._care:
            self._care.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._care
        self._send(Close())
        await self._reap(CLOSE_GRACE_SECONDS)
        self._streams.fail_all(EngineLost("the engine was closed"))
        await self._become(Health.FAILED)

    async def _run(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        """The request's events, remembering that it is in flight while they come."""
        self._in_flight[id(request)] = request
        events = self._streams.run(request, self._send)
        try:
            async for event in events:
                yield event
        finally:
            del self._in_flight[id(request)]
            await events.aclose()

    def _send(self, command: Command) -> None:
        """Hand a command to the child; to a dead one nothing needs to be said."""
        if self._channel and not self._channel.is_closing():
            self._channel.write(pack(command))

    async def _spawn(self) -> asyncio.StreamReader:
        """Start a child and wait for `Ready`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "trtspec.executors.worker", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                env=considerate(os.environ),
            )
        reader, self._channel = await asyncio.open_connection(sock=ours)
        self._channel.write(pack(self._open))
        try:
            await self._greet(await _receive(reader))
        except BaseException:
            await self._reap(0.0)
            raise
        return reader

    async def _greet(self, message: object | None) -> None:
        match message:
            case Ready(info, stats):
                self._info, self._stats = info, stats
                await self._become(Health.SERVING)
            case OpenFailed(error):
                raise error
            case _:
                raise EngineFolderError(f"the engine's process died while it opened {self._open.directory}")

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        """Deliver what the child reports; when it dies, start another until its crashes are too many."""
        while True:
            await self._deliver(reader)
            self._crashes.record(time.monotonic(), list(self._in_flight.values()))
            await self._become(Health.FAILED if self._crashes.exhausted else Health.RESTARTING)
            await self._reap(0.0)
            code = self._process.returncode if self._process else None
            _log.error("the engine's process died with code %s; %d requests lost", code, len(self._in_flight))
            self._streams.fail_all(EngineLost(f"the engine's process died (exit code {code})"))
            if self._crashes.exhausted:
                return
            await asyncio.sleep(self._crashes.backoff_seconds)
            try:
                reader = await self._spawn()
            except Exception as error:
                _log.error("the engine cannot be opened again: %s", error)
                await self._become(Health.FAILED)
                return

    async def _deliver(self, reader: asyncio.StreamReader) -> None:
        while isinstance(report := await _receive(reader), Report):
            self._stats = report.stats
            self._streams.deliver(report.events)

    async def _reap(self, grace: float) -> None:
        """Wait for the child to end, kill it after the grace, and close the channel."""
        if self._process:
            try:
                await asyncio.wait_for(self._process.wait(), grace)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._channel:
            self._channel.close()
            with contextlib.suppress(OSError):
                await self._channel.wait_closed()

    async def _become(self, health: Health) -> None:
        async with self._changed:
            self._health = health
            self._changed.notify_all()


async def _receive(reader: asyncio.StreamReader) -> object | None:
    """The next message of the child; None once it is gone."""
    try:
        header = await reader.readexactly(HEADER.size)
        body = await reader.readexactly(HEADER.unpack(header)[0])
    except (asyncio.IncompleteReadError, OSError):
        return None
    return unpack(body)
