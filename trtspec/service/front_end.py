"""The main process's handle on a front-end: a process that answers clients, and after its death the next one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.executors.child import DEATH_GRACE_SECONDS, Child
from trtspec.executors.crashes import CrashHistory
from trtspec.executors.hub import Hub
from trtspec.executors.hub_messages import Joined
from trtspec.service.options import ServeOptions
from trtspec.service.signals import FROM_MAIN_PROCESS
from trtspec.service.telemetry.totals import Totals
from trtspec.service.waiting import give, new_cue, unless

_log = logging.getLogger(__name__)

_MODULE = "trtspec.service.front_process"


@dataclass(frozen=True, slots=True)
class Order:
    """What a front-end is to serve, by the options of the whole server."""

    number: int
    directory: Path
    options: ServeOptions


class FrontEnd:
    """Start it, then keep it until it is asked to stop."""

    def __init__(self, order: Order) -> None:
        self.answering = asyncio.Event()
        """It has answered requests at some time."""
        self._order = order
        self._name = f"front-end {order.number}"
        self._crashes = CrashHistory()
        self._stopping = new_cue()
        self._child: Child | None = None

    async def start(self) -> None:
        """Start a process and wait until it listens. Raises what it could not for, `ChildLost` if it died."""
        self._child = await Child.start(self._name, _MODULE, self._order)
        await self._child.opened(Joined)

    async def keep(self, hub: Hub, totals: Totals) -> None:
        """Share the engine with it and its successors. Returns when it ended as asked, or died too often."""
        while self._child is not None:
            with totals.joined() as source:
                lost = await hub.serve(self._child.channel, self.answering.set, lambda told: source.tell(told.totals))
            await self._child.end()
            if not self._stopping.done():
                _log.error("%s died (%s); %d requests lost", self._name, self._child.fate, lost)
                await unless(self._stopping, self._replace())
            if self._stopping.done():
                return

    def stop(self) -> None:
        """Ask it to drain; a second time, to hurry."""
        give(self._stopping)
        if self._child is not None:
            for number in FROM_MAIN_PROCESS:
                with contextlib.suppress(ProcessLookupError):
                    self._child.process.send_signal(number)

    async def aclose(self) -> None:
        """Make sure that its process is gone."""
        give(self._stopping)
        await self._end()

    async def _replace(self) -> None:
        """Start processes until one listens or their deaths are too many."""
        self._crashes.record(time.monotonic(), [])
        while not self._crashes.exhausted:
            await asyncio.sleep(self._crashes.backoff_seconds)
            try:
                return await self.start()
            except (TrtspecError, OSError) as error:
                _log.error("%s is not started: %s", self._name, error)
                self._crashes.record(time.monotonic(), [])
        _log.error("%s is not started again: it died too often", self._name)
        await self._end()

    async def _end(self) -> None:
        if self._child is not None:
            await self._child.end(DEATH_GRACE_SECONDS)
            self._child = None
