"""Drives TensorRT-LLM's PyTorch flow, whose requests are asynchronous iterators: a task for each output.

The thread that owns the engine runs an event loop of its own, which `LLM.generate_async` asks for. Commands reach it
from the inbox by one thread that waits there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from trtspec.errors import DeadlineExceeded, RequestError
from trtspec.executors.messages import Cancel, Close, Limit, Report, Submit
from trtspec.executors.tensorrt_llm.acceptance_watch import AcceptanceWatch
from trtspec.executors.tensorrt_llm.failures import EngineDied, is_forward_failure, request_error
from trtspec.executors.tensorrt_llm.iteration_stats import idle
from trtspec.executors.tensorrt_llm.llm_answers import LlmAnswer
from trtspec.types import EngineEvent, EngineStats, Failed, Finish, FinishReason, Request, Started, StepOutput

_log = logging.getLogger(__name__)
_STATS_SECONDS = 0.25


@dataclass(slots=True)
class Live:
    """One of our requests: the tasks of its outputs, and what each of them holds."""

    request: Request
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    started: bool = False


class LlmLoop:
    """One LLM, one inbox, one owning thread: whoever calls `run`."""

    def __init__(
        self,
        llm: Any,
        check: Callable[[Request], None],
        ask: Callable[[Request, int], tuple[LlmAnswer, Any]],
        request_failure: type[BaseException],
        watch: AcceptanceWatch,
        *,
        stall_seconds: float,
    ) -> None:
        self._llm = llm
        self._check = check
        self._ask = ask
        self._request_failure = request_failure
        self._watch = watch
        self._stall_seconds = stall_seconds
        self._last_sign = 0.0
        self._live: dict[str, Live] = {}
        self._stats = EngineStats()
        self._passes = 0
        self._following = 0
        """Outputs that were asked for and have not ended."""
        self._publish: Callable[[Report], None] = lambda _: None
        self._died: asyncio.Future[None] | None = None

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        """Obey and publish until `Close`; then nothing of any request is left in the LLM."""
        self._publish = publish
        asyncio.run(self._serve(inbox))
        self._llm.shutdown()

    def check(self) -> None:
        """Assert that nothing is left."""
        assert not self._live, "requests are left in a closed engine"

    async def _serve(self, inbox: SimpleQueue[Any]) -> None:
        loop = asyncio.get_running_loop()
        messages: asyncio.Queue[Any] = asyncio.Queue()
        self._died = loop.create_future()

        def listen() -> None:
            while True:
                message = inbox.get()
                loop.call_soon_threadsafe(messages.put_nowait, message)
                if isinstance(message, Close):
                    return

        threading.Thread(target=listen, name="trtspec-commands", daemon=True).start()
        obeying = [asyncio.create_task(self._obey(messages)), asyncio.create_task(self._read_stats())]
        done, _ = await asyncio.wait([obeying[0], self._died], return_when=asyncio.FIRST_COMPLETED)
        for task in obeying:
            task.cancel()
        await asyncio.gather(*obeying, return_exceptions=True)
        if self._died in done:
            self._died.result()
        await self._end_all()

    async def _obey(self, messages: asyncio.Queue[Any]) -> None:
        while True:
            match await messages.get():
                case Submit(request):
                    self._submit(request)
                case Cancel(request_id):
                    self._cancel(request_id)
                case Limit(limit):  # one that bounds nothing: drafts of this flow are of the LLM
                    self._stats = replace(self._stats, limit=limit)
                    self._tell()
                case Close():
                    return

    def _submit(self, request: Request) -> None:
        try:
            self._check(request)
        except RequestError as error:
            self._tell(Failed(request.request_id, error))
            return
        if not self._live:
            self._last_sign = time.monotonic()
        live = self._live[request.request_id] = Live(request)
        live.tasks = [asyncio.create_task(self._follow(live, index)) for index in range(request.n)]

    def _cancel(self, request_id: str) -> None:
        """A cancelled task aborts its output in the LLM."""
        if live := self._live.pop(request_id, None):
            for task in live.tasks:
                task.cancel()
            self._tell()

    async def _end_all(self) -> None:
        tasks = [task for live in self._live.values() for task in live.tasks]
        for request_id in list(self._live):
            self._cancel(request_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, live: Live, index: int) -> None:
        """One output from its request to its end."""
        self._following += 1
        try:
            answer, output = self._ask(live.request, index)
            try:
                async with _until(live.request.deadline):
                    async for answered in output:
                        self._step(live, answer.take(answered, self._next_pass()))
            except TimeoutError:
                self._overdue(live, index)
            finally:
                self._watch.ended(output.avg_decoded_tokens_per_iter, self._following)
                if not output.finished:
                    output.abort()
        except self._request_failure as error:
            self._fail(live, str(error))
        except Exception as error:  # no error of this request alone: the LLM is going down
            self._die(f"the LLM failed: {error!r}")
        finally:
            self._following -= 1

    def _next_pass(self) -> int:
        self._passes += 1
        self._last_sign = time.monotonic()
        return self._passes

    def _step(self, live: Live, step: StepOutput | None) -> None:
        if step is None or live.request.request_id not in self._live:
            return
        first = [] if live.started else [Started(live.request.request_id)]
        live.started = True
        if step.finish is not None:
            self._ended(live)
        self._tell(*first, step)

    def _overdue(self, live: Live, index: int) -> None:
        """The time is over: for what nobody saw begin, as if it had never come."""
        request = live.request
        if request.request_id not in self._live:
            return
        if live.started:
            self._ended(live)
            self._tell(StepOutput(request.request_id, index, (), (), Finish(FinishReason.DEADLINE)))
        else:
            self._cancel(request.request_id)
            self._tell(Failed(request.request_id, DeadlineExceeded("the deadline passed while it waited")))

    def _fail(self, live: Live, message: str) -> None:
        if is_forward_failure(message):
            self._die(str(request_error(message)))
        elif self._live.pop(live.request.request_id, None):
            current = asyncio.current_task()
            for task in live.tasks:
                if task is not current:
                    task.cancel()
            self._tell(Failed(live.request.request_id, request_error(message)))

    def _ended(self, live: Live) -> None:
        """Forget a request with the last of its outputs."""
        current = asyncio.current_task()
        if all(task.done() or task is current for task in live.tasks):
            self._live.pop(live.request.request_id, None)

    async def _read_stats(self) -> None:
        """Follow the LLM's statistics. Under load they do not end, so that each is read as it comes."""
        while True:
            await asyncio.sleep(_STATS_SECONDS)
            self._look_after(time.monotonic())
            with contextlib.suppress(asyncio.TimeoutError):
                async for iteration in self._llm.get_stats_async(timeout=_STATS_SECONDS):
                    self._look_after(time.monotonic())
                    self._stats = read_llm_stats([iteration], self._stats)
                    self._watch.iterated([iteration])

    def _look_after(self, now: float) -> None:
        """A hanging LLM cannot be told from a slow one but by time."""
        if self._live and now - self._last_sign > self._stall_seconds:
            self._die(f"no response came for {self._stall_seconds:.0f} s, with {len(self._live)} requests unfinished")

    def _die(self, reason: str) -> None:
        if self._died is not None and not self._died.done():
            self._died.set_exception(EngineDied(reason))

    def _tell(self, *events: EngineEvent) -> None:
        running = sum(live.started for live in self._live.values())
        stats = replace(self._stats, running=running, waiting=len(self._live) - running)
        self._publish(Report(events, stats if self._live else idle(stats)))


@contextlib.asynccontextmanager
async def _until(deadline: float | None) -> AsyncIterator[None]:
    """`asyncio.timeout_at` on the monotonic clock, for Python 3.10 too: raises TimeoutError when it is over."""
    if deadline is None:
        yield
        return
    task, over = asyncio.current_task(), False

    def end() -> None:
        nonlocal over
        over = True
        if task is not None:
            task.cancel()

    handle = asyncio.get_running_loop().call_later(max(deadline - time.monotonic(), 0), end)
    try:
        yield
    except asyncio.CancelledError:
        if over:
            raise TimeoutError from None
        raise
    finally:
        handle.cancel()


def read_llm_stats(iterations: Sequence[dict[str, Any]], before: EngineStats) -> EngineStats:
    """The state after these iterations."""
    if not iterations:
        return before
    last = iterations[-1]
    pool = last.get("kvCacheStats") or {}
    batches = [item.get("inflightBatchingStats") or {} for item in iterations]
    return EngineStats(
        passes=last.get("iter", before.passes),
        running=last.get("numActiveRequests", 0),
        waiting=last.get("numQueuedRequests", 0),
        free_blocks=pool.get("freeNumBlocks", before.free_blocks),
        total_blocks=pool.get("maxNumBlocks", before.total_blocks),
        preemptions=before.preemptions + sum(batch.get("numPausedRequests", 0) for batch in batches),
        limit=before.limit,
    )
