"""Drives TensorRT-LLM's executors, which batch what is asked of them: requests go in, responses come back.

For each executor one thread waits for responses and hands each batch over in one message; the engine's own thread owns
all state, and takes commands and responses from one inbox in the order in which they came. An output asks an executor
once, or for one round after another. When a step of an executor fails, all its requests have ended and a device error
would stick, so that the process ends with `EngineDied`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from trtspec.errors import DeadlineExceeded, Overloaded, RequestError
from trtspec.executors.messages import Cancel, Close, Limit, Report, Submit
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.executors.tensorrt_llm.engines import Engine
from trtspec.executors.tensorrt_llm.failures import SHUT_DOWN, EngineDied, is_forward_failure, request_error
from trtspec.executors.tensorrt_llm.iteration_stats import idle, read_stats
from trtspec.executors.tensorrt_llm.limiting import Limiter
from trtspec.executors.tensorrt_llm.outputs import Ask, Live, Output
from trtspec.executors.tensorrt_llm.waiting import Arrived, Broken, wait_for_responses
from trtspec.types import EngineEvent, EngineStats, Failed, Request, Started, StepOutput

Id = tuple[str, int]
"""Of what was asked: the executor's name, and its own id."""

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25
"""How often deadlines of queued requests, and a hanging engine, are looked after while requests live."""
_DRAIN_SECONDS = 10.0


class EngineLoop:
    """The executors of an engine folder, one inbox, one owning thread: whoever calls `run`."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        outputs: Callable[[Request], Sequence[Output]],
        stats: EngineStats,
        limiter: Limiter,
        *,
        tokens_per_block: int,
        stall_seconds: float,
    ) -> None:
        self._engines = engines
        self._outputs = outputs
        self._stats = stats
        self._limiter = limiter
        self._tokens_per_block = tokens_per_block
        self._stall_seconds = stall_seconds
        self._asked: dict[Id, Output] = {}
        """What is under way; of cancelled requests, until its last response."""
        self._live: dict[str, Live] = {}
        self._going_on: list[Output] = []
        """Those whose round is over, until all that came with it is read: what is asked at once is batched at once."""
        self._full = False
        """Some of them found an executor's queue full: nobody new is let in before they are."""
        self._batches = 0
        self._last_signs: dict[str, float] = {}
        """When each engine last answered, or was asked something while it had nothing to do."""

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        """Obey and publish until `Close`; then nothing of any request is left in the executor."""
        waiting = wait_for_responses(self._engines, inbox)
        closing = False
        while not closing:  # an engine that died raises from here, and is not shut down: that could wait for ever
            events, closing = self._turn(inbox)
            self._report(events, publish)
        self._drain(inbox)
        for executor, thread in zip(self._engines.values(), waiting, strict=True):
            executor.shutdown()
            thread.join()

    def check(self) -> None:
        """Assert that nothing is left."""
        assert not self._asked and not self._live and not self._going_on, "requests are left in a closed engine"

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
        return [*events, *self._go_on(), *self._look_after(time.monotonic())], False

    def _obey(self, message: object) -> Iterable[EngineEvent]:
        match message:
            case Submit(request):
                return self._submit(request)
            case Cancel(request_id):
                self._cancel(request_id)
            case Limit(limit):
                self._limiter.limit = limit
            case Arrived(name, responses):
                return self._arrived(name, responses)
            case Broken(reason) if SHUT_DOWN not in reason:
                raise EngineDied(f"the executor stopped: {reason}")
        return ()

    def _submit(self, request: Request) -> Iterable[EngineEvent]:
        """Enqueue all outputs of a request at once, or none of them."""
        outputs: Sequence[Output] = ()
        try:
            if self._full:
                raise Overloaded("the engine's queue is full: outputs that run already wait for a place in it")
            outputs, now = self._outputs(request), time.monotonic()
            self._enqueue([(output, output.ask(now)) for output in outputs])
        except RequestError as error:
            for output in outputs:
                output.close()
            return (Failed(request.request_id, error),)
        self._live[request.request_id] = Live(request, request.n, plain=self._limiter.limit.off)
        return ()

    def _enqueue(self, asks: Sequence[tuple[Output, Ask]]) -> None:
        """Ask one executor for what outputs want. Raises a `RequestError`; then nothing is asked."""
        if not asks:
            return
        name = asks[0][1].engine
        if not self._is_busy(name):
            self._last_signs[name] = time.monotonic()
        try:
            ids = self._engines[name].enqueue([ask.arguments for _, ask in asks])
        except RuntimeError as error:
            raise request_error(str(error)) from error
        self._asked |= {(name, id_): output for id_, (output, _) in zip(ids, asks, strict=True)}

    def _go_on(self) -> Iterable[EngineEvent]:
        """The next round of all that are waiting for one, for each executor at once."""
        going, self._going_on, self._full = self._going_on, [], False
        asks: dict[str, list[tuple[Output, Ask]]] = {}
        for output in going:
            now = time.monotonic()
            if not self._is_live(output):
                output.close()
            elif (step := output.late(now)) is not None:
                yield from self._told(self._live[output.request.request_id], step, None)
                output.close()
            else:
                try:
                    ask = output.ask(now)
                    asks.setdefault(ask.engine, []).append((output, ask))
                except RequestError as error:
                    yield self._fail(output, error)
        for some in asks.values():
            yield from self._ask_again(some)

    def _ask_again(self, asks: Sequence[tuple[Output, Ask]]) -> Iterable[EngineEvent]:
        """All at once, or, where that is refused, one after the other: what finds no place waits for the next turn."""
        live = [pair for pair in asks if self._is_live(pair[0])]
        for output in [output for output, _ in asks if not self._is_live(output)]:
            output.close()
        with contextlib.suppress(RequestError):
            self._enqueue(live)
            return
        for place, (output, ask) in enumerate(live):
            try:
                if self._is_live(output):
                    self._enqueue([(output, ask)])
                else:
                    output.close()
            except Overloaded:
                self._going_on += [output for output, _ in live[place:]]
                self._full = True
                return
            except RequestError as error:
                yield self._fail(output, error)

    def _is_live(self, output: Output) -> bool:
        return output.request.request_id in self._live

    def _is_busy(self, name: str) -> bool:
        return any(engine == name for engine, _ in self._asked)

    def _cancel(self, request_id: str) -> None:
        """Nobody waits for the request any more; its last responses are still to come."""
        if self._live.pop(request_id, None):
            for (name, id_), output in self._asked.items():
                if output.request.request_id == request_id:
                    self._engines[name].cancel_request(id_)

    def _arrived(self, name: str, responses: Sequence[Any]) -> Iterable[EngineEvent]:
        self._batches += name == TARGET
        self._last_signs[name] = time.monotonic()
        for response in responses:
            id_ = (name, response.request_id)
            if response.has_error():
                yield from self._error(id_, response.error_msg)
            elif output := self._asked.get(id_):
                yield from self._result(id_, output, response.result)

    def _result(self, id_: Id, output: Output, result: Any) -> Iterable[EngineEvent]:
        step = output.take(result, self._batches)
        if step is not None and self._is_live(output):
            yield from self._told(self._live[output.request.request_id], step, result)
        if result.is_final:
            self._final(id_, output, result)

    def _told(self, live: Live, step: StepOutput, result: Any | None) -> Iterable[EngineEvent]:
        if not live.started:
            live.started = True
            cached = live.cached_tokens(result, self._tokens_per_block)
            yield Started(live.request.request_id, cached, live.lowered(self._limiter.limit))
        if step.finish is not None:
            live.unfinished -= 1
            if not live.unfinished:
                del self._live[live.request.request_id]
        yield step

    def _final(self, id_: Id, output: Output, result: Any) -> None:
        """An answer is complete: the output ended, or goes on with its next round if somebody still waits for it."""
        del self._asked[id_]
        if doubt := output.disagreement(result):
            _log.warning("request %s: %s", output.request.request_id, doubt)
        if output.ended or not self._is_live(output):
            output.close()
        else:
            self._going_on.append(output)

    def _error(self, id_: Id, message: str) -> Iterable[EngineEvent]:
        """One request was refused, or, where a step failed, none goes on."""
        if is_forward_failure(message):
            raise EngineDied(str(request_error(message)))
        output = self._asked.pop(id_, None)
        if output is not None and self._is_live(output):
            yield self._fail(output, request_error(message))
        elif output is not None:
            output.close()

    def _fail(self, output: Output, error: RequestError) -> Failed:
        """End a request for one of its outputs; the others are cancelled."""
        output.close()
        self._cancel(output.request.request_id)
        return Failed(output.request.request_id, error)

    def _look_after(self, now: float) -> list[EngineEvent]:
        """End requests that waited past their deadline; the runtime looks at those alone that take part in steps."""
        for name, sign in self._last_signs.items():
            if now - sign > self._stall_seconds and self._is_busy(name):
                raise EngineDied(
                    f"no response came for {self._stall_seconds:.0f} s, with {len(self._asked)} outputs unfinished"
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
        before, iterations = self._stats, self._engines[TARGET].get_latest_iteration_stats()
        self._stats = replace(read_stats(iterations, before), limit=self._limiter.limit)
        if not self._asked:  # no iteration tells that the last one was the last
            self._stats = idle(self._stats)
        if events or self._stats != before:
            publish(Report(tuple(events), self._stats))

    def _drain(self, inbox: SimpleQueue[Any]) -> None:
        """Cancel everything and take the last responses: only then may the executor be shut down."""
        for request_id in list(self._live):
            self._cancel(request_id)
        list(self._go_on())
        until = time.monotonic() + _DRAIN_SECONDS
        while self._asked and (left := until - time.monotonic()) > 0:
            try:
                message = inbox.get(timeout=left)
            except Empty:
                break
            if isinstance(message, Broken):
                break
            if isinstance(message, Arrived):
                list(self._arrived(message.engine, message.responses))
        if self._asked:
            _log.error("%d requests did not end in %.0f s", len(self._asked), _DRAIN_SECONDS)
            self._asked.clear()
