"""Drives TensorRT-LLM's executor, which batches, drafts and verifies by itself: requests go in, responses come back.

One thread waits for responses and hands each batch over in one message; the engine's own thread owns all state, and
takes commands and responses from one inbox in the order in which they came. When a step of the engine fails, all its
requests have ended and a device error would stick, so that the process ends with `EngineDied`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from trtspec.errors import DeadlineExceeded, RequestError
from trtspec.executors.messages import Cancel, Close, Report, Submit
from trtspec.executors.tensorrt_llm.answers import Answer
from trtspec.executors.tensorrt_llm.failures import SHUT_DOWN, EngineDied, is_forward_failure, request_error
from trtspec.executors.tensorrt_llm.iteration_stats import idle, read_stats
from trtspec.types import EngineEvent, EngineStats, Failed, Request, Started

_log = logging.getLogger(__name__)
_POLL = timedelta(seconds=1)
"""How long the waiting thread is out of reach."""
_TICK_SECONDS = 0.25
"""How often deadlines of queued requests, and a hanging engine, are looked after while requests live."""
_DRAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch of responses."""

    responses: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Broken:
    """The waiting thread can go on no more."""

    reason: str


@dataclass(slots=True)
class Live:
    """One of our requests, and what has become of its outputs."""

    request: Request
    ids: tuple[int, ...]
    unfinished: int
    started: bool = False


class EngineLoop:
    """One executor, one inbox, one owning thread: whoever calls `run`."""

    def __init__(
        self,
        executor: Any,
        make: Callable[[Request, float], list[tuple[Answer, Any]]],
        stats: EngineStats,
        *,
        tokens_per_block: int,
        stall_seconds: float,
    ) -> None:
        self._executor = executor
        self._make = make
        self._stats = stats
        self._tokens_per_block = tokens_per_block
        self._stall_seconds = stall_seconds
        self._answers: dict[int, Answer] = {}
        """By TensorRT-LLM's id; those of cancelled requests stay until their last response."""
        self._live: dict[str, Live] = {}
        self._batches = 0
        self._last_sign = time.monotonic()

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        """Obey and publish until `Close`; then nothing of any request is left in the executor."""
        waiting = threading.Thread(target=self._wait, args=(inbox,), name="trtspec-responses", daemon=True)
        waiting.start()
        closing = False
        while not closing:  # an engine that died raises from here, and is not shut down: that could wait for ever
            events, closing = self._turn(inbox)
            self._report(events, publish)
        self._drain(inbox)
        self._executor.shutdown()
        waiting.join()

    def check(self) -> None:
        """Assert that nothing is left."""
        assert not self._answers and not self._live, "requests are left in a closed engine"

    def _wait(self, inbox: SimpleQueue[Any]) -> None:
        """The waiting thread: every batch of responses becomes one message."""
        while True:
            try:
                if responses := self._executor.await_responses(timeout=_POLL):
                    inbox.put(Arrived(responses))
            except RuntimeError as error:
                inbox.put(Broken(str(error)))
                return

    def _turn(self, inbox: SimpleQueue[Any]) -> tuple[list[EngineEvent], bool]:
        """Take all messages that are there; wait for one, but not past the next look at deadlines."""
        events: list[EngineEvent] = []
        timeout = _TICK_SECONDS if self._live else None
        try:
            message = inbox.get(timeout=timeout)
            while True:
                if isinstance(message, Close):
                    return events, True
                events += self._obey(message)
                message = inbox.get_nowait()
        except Empty:
            pass
        return events + self._look_after(time.monotonic()), False

    def _obey(self, message: object) -> Iterable[EngineEvent]:
        match message:
            case Submit(request):
                return self._submit(request)
            case Cancel(request_id):
                self._cancel(request_id)
            case Arrived(responses):
                return self._arrived(responses)
            case Broken(reason) if SHUT_DOWN not in reason:
                raise EngineDied(f"the executor stopped: {reason}")
        return ()

    def _submit(self, request: Request) -> Iterable[EngineEvent]:
        """Enqueue all outputs of a request at once, or none of them."""
        try:
            made = self._make(request, time.monotonic())
            ids = tuple(self._executor.enqueue_requests([item for _, item in made]))
        except RequestError as error:
            return (Failed(request.request_id, error),)
        except RuntimeError as error:
            return (Failed(request.request_id, request_error(str(error))),)
        if not self._live:
            self._last_sign = time.monotonic()
        self._answers |= dict(zip(ids, (answer for answer, _ in made), strict=True))
        self._live[request.request_id] = Live(request, ids, request.n)
        return ()

    def _cancel(self, request_id: str) -> None:
        """Nobody waits for the request any more; its last responses are still to come."""
        if live := self._live.pop(request_id, None):
            for id_ in live.ids:
                if id_ in self._answers:
                    self._executor.cancel_request(id_)

    def _arrived(self, responses: Sequence[Any]) -> Iterable[EngineEvent]:
        self._batches += 1
        self._last_sign = time.monotonic()
        for response in responses:
            yield from self._response(response)

    def _response(self, response: Any) -> Iterable[EngineEvent]:
        if response.has_error():
            yield from self._error(response.request_id, response.error_msg)
            return
        answer, result = self._answers.get(response.request_id), response.result
        if answer is None:
            return
        step = answer.take(result, self._batches)
        if result.is_final:
            del self._answers[response.request_id]
            if doubt := answer.disagreement(result):
                _log.warning("request %s: %s", answer.request.request_id, doubt)
        live = self._live.get(answer.request.request_id)
        if live is None or step is None:
            return
        if not live.started:
            live.started = True
            yield Started(live.request.request_id, self._cached_tokens(result))
        if step.finish is not None:
            live.unfinished -= 1
            if not live.unfinished:
                del self._live[live.request.request_id]
        yield step

    def _error(self, id_: int, message: str) -> Iterable[EngineEvent]:
        """One request was refused, or, where a step failed, none goes on."""
        if is_forward_failure(message):
            raise EngineDied(str(request_error(message)))
        answer = self._answers.pop(id_, None)
        if answer is not None and answer.request.request_id in self._live:
            self._cancel(answer.request.request_id)  # its other outputs
            yield Failed(answer.request.request_id, request_error(message))

    def _cached_tokens(self, result: Any) -> int | None:
        metrics = result.request_perf_metrics
        return None if metrics is None else metrics.kv_cache_metrics.num_reused_blocks * self._tokens_per_block

    def _look_after(self, now: float) -> list[EngineEvent]:
        """End requests that waited past their deadline; the runtime looks at those alone that take part in steps."""
        if self._answers and now - self._last_sign > self._stall_seconds:
            raise EngineDied(
                f"no response came for {self._stall_seconds:.0f} s, with {len(self._answers)} outputs unfinished"
            )
        late = [
            live.request
            for live in self._live.values()
            if not live.started and live.request.deadline is not None and live.request.deadline <= now
        ]
        for request in late:
            self._cancel(request.request_id)
        return [Failed(item.request_id, DeadlineExceeded("the deadline passed while it waited")) for item in late]

    def _report(self, events: Sequence[EngineEvent], publish: Callable[[Report], None]) -> None:
        before, self._stats = self._stats, read_stats(self._executor.get_latest_iteration_stats(), self._stats)
        if not self._answers:  # no iteration tells that the last one was the last
            self._stats = idle(self._stats)
        if events or self._stats != before:
            publish(Report(tuple(events), self._stats))

    def _drain(self, inbox: SimpleQueue[Any]) -> None:
        """Cancel everything and take the last responses: only then may the executor be shut down."""
        for request_id in list(self._live):
            self._cancel(request_id)
        until = time.monotonic() + _DRAIN_SECONDS
        while self._answers and (left := until - time.monotonic()) > 0:
            try:
                message = inbox.get(timeout=left)
            except Empty:
                break
            if isinstance(message, Arrived):
                list(self._arrived(message.responses))
        if self._answers:
            _log.error("%d requests did not end in %.0f s", len(self._answers), _DRAIN_SECONDS)
            self._answers.clear()
