"""Where requests with a guide wait until it is compiled: before the engine, which sees them as they come out.

What is wrong with a guide is so told before its request is in the queue, and nobody's tokens wait for a compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from trtspec.errors import DeadlineExceeded, RequestError
from trtspec.executors.guides.compiler import Answer, GuideCompiler
from trtspec.executors.messages import Cancel, Report, Submit
from trtspec.executors.opened import Opened
from trtspec.types import EngineInfo, EngineStats, Failed, Request


class Answered:
    """To the gate: the guide of a request has been tried."""

    def __init__(self, request_id: str, answer: Answer) -> None:
        self.request_id = request_id
        self.answer = answer


class GuideGate:
    """Implements `Opened` in front of another one."""

    def __init__(self, opened: Opened, compiler: GuideCompiler) -> None:
        self._opened = opened
        self._compiler = compiler

    @property
    def info(self) -> EngineInfo:
        return self._opened.info

    def stats(self) -> EngineStats:
        return self._opened.stats()

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        gated = GatedInbox(inbox, self._compiler, publish, self._opened.stats())
        try:
            self._opened.run(gated, gated.publish)
        finally:
            self._compiler.close()

    def check(self) -> None:
        self._opened.check()


class GatedInbox(SimpleQueue[Any]):
    """An engine's inbox that keeps back requests whose guide is being compiled. For one reading thread."""

    def __init__(
        self,
        inbox: SimpleQueue[Any],
        compiler: GuideCompiler,
        publish: Callable[[Report], None],
        stats: EngineStats,
    ) -> None:
        super().__init__()
        self._inbox = inbox
        self._compiler = compiler
        self._publish = publish
        self._stats = stats
        self._waiting: dict[str, Request] = {}

    def publish(self, report: Report) -> None:
        """Those that wait here wait as well."""
        self._stats = report.stats
        self._publish(replace(report, stats=self._counted()))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._inbox.put(item)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._expire(time.monotonic())
            try:
                message = self._through(self._inbox.get(block, self._patience(until)))
            except Empty:
                if not block or (until is not None and time.monotonic() >= until):
                    raise
                continue
            if message is not None:
                return message

    def _through(self, message: Any) -> Any | None:
        """A message as the engine gets it; None for what stays here."""
        match message:
            case Submit(request) if request.guide is not None:
                return self._submit(request)
            case Answered(request_id=request_id, answer=answer):
                waited = self._waiting.pop(request_id, None)
                return None if waited is None else self._answered(waited, answer)
            case Cancel(request_id):
                self._waiting.pop(request_id, None)
        return message

    def _submit(self, request: Request) -> Submit | None:
        assert request.guide is not None
        answer = self._compiler.known(request.guide)
        if answer is not None:
            return self._answered(request, answer)
        self._waiting[request.request_id] = request
        self._compiler.ask(request.guide, partial(self._put_answer, request.request_id))
        self._tell()
        return None

    def _put_answer(self, request_id: str, answer: Answer) -> None:
        self._inbox.put(Answered(request_id, answer))

    def _answered(self, request: Request, answer: Answer) -> Submit | None:
        if isinstance(answer, RequestError):
            self._tell(Failed(request.request_id, answer))
            return None
        return Submit(replace(request, guide=answer))

    def _expire(self, now: float) -> None:
        late = [item for item in self._waiting.values() if item.deadline is not None and item.deadline <= now]
        for request in late:
            del self._waiting[request.request_id]
            error = DeadlineExceeded("the time was over while the request waited for its guide to be compiled")
            self._tell(Failed(request.request_id, error))

    def _patience(self, until: float | None) -> float | None:
        """How long to wait for a message: as long as the caller does, and no longer than the next deadline."""
        ends = [item.deadline for item in self._waiting.values() if item.deadline is not None]
        ends += [] if until is None else [until]
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def _tell(self, *failed: Failed) -> None:
        self._publish(Report(failed, self._counted()))

    def _counted(self) -> EngineStats:
        return replace(self._stats, waiting=self._stats.waiting + len(self._waiting))
