"""Turns an engine: takes commands between passes, publishes what each pass made known. Owns no thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from trtspec.decoding.engine import Engine
from trtspec.errors import RequestError
from trtspec.executors.messages import Cancel, Close, Command, Limit, Report, Submit
from trtspec.types import EngineEvent, Failed


class EngineLoop:
    """One engine, one inbox, one thread: whoever calls `run`."""

    def __init__(self, engine: Engine, inbox: SimpleQueue[Command], publish: Callable[[Report], None]) -> None:
        self._engine = engine
        self._inbox = inbox
        self._publish = publish
        self._closing = False
        self._reported = engine.stats()

    def run(self) -> None:
        """Turn until `Close`. Sleeps while no request lives."""
        while not self._closing:
            self._report(self._obey())
            if not self._closing and not self._engine.idle:
                begun = self._engine.begin(time.monotonic())
                self._report(begun.events)
                if begun.plan is not None:
                    self._report(self._engine.finish(begun.plan))

    def _report(self, events: tuple[EngineEvent, ...]) -> None:
        """Publish what is new, be it events or only the engine's state."""
        stats = self._engine.stats()
        if events or stats != self._reported:
            self._reported = stats
            self._publish(Report(events, stats))

    def _obey(self) -> tuple[EngineEvent, ...]:
        """Carry out all commands that are there; wait for one where there is nothing else to do."""
        events: list[EngineEvent] = []
        wait = self._engine.idle
        while not self._closing:
            try:
                events += self._carry_out(self._inbox.get(block=wait))
            except Empty:
                break
            wait = False
        return tuple(events)

    def _carry_out(self, command: Command) -> tuple[EngineEvent, ...]:
        match command:
            case Submit(request):
                try:
                    self._engine.submit(request)
                except RequestError as error:
                    return (Failed(request.request_id, error),)
            case Cancel(request_id):
                return self._engine.cancel(request_id)
            case Limit(limit):
                self._engine.limit(limit)
            case Close():
                self._closing = True
        return ()
