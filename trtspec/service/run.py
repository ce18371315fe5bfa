"""One admitted Generate request, from the engine's first event to `finished`.

It owns the request's outputs and the closing of the engine's iterator. Where messages go is a function it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor as Pool
from functools import partial
from typing import TypeVar

import grpc

from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import Draining, EngineFault
from trtspec.executors.base import Executor
from trtspec.service import observing, responses
from trtspec.service.assemble import OutputAssembler
from trtspec.service.detokenize import Decode, StopScanner
from trtspec.service.model import ServedModel
from trtspec.service.observing import Clock, Ending, RequestObserver, Summary
from trtspec.service.requests import Granularity, ParsedRequest, StatsLevel
from trtspec.service.waiting import Cue, unless
from trtspec.types import Finish, FinishReason, Request, RequestEvent, Started, StepOutput, TokenLogprobs
from trtspec.v1 import inference_pb2 as pb

_MARGIN_SECONDS = 0.25
"""The engine stops this long before the call's deadline, so that `finished` can still arrive. A pass that takes
longer is not interrupted."""
_MARGIN_SHARE = 0.1
"""And at most this share of the remaining time, so that short calls are not all margin."""

_UNENDED = {
    grpc.StatusCode.CANCELLED: FinishReason.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: FinishReason.DEADLINE,
}
"""Why an output has no end, by the status of its call."""

T = TypeVar("T")
Write = Callable[[pb.GenerateResponse], Awaitable[None]]


class GenerateRun:
    """Streams one request. Detokenising runs in the pool; a request is in one thread at a time."""

    def __init__(
        self,
        parsed: ParsedRequest,
        request: Request,
        model: ServedModel,
        clock: Clock,
        decode: Decode,
        pool: Pool,
        cancelled: Cue,
        observer: RequestObserver,
    ) -> None:
        self._parsed = parsed
        self._request = request
        self._model = model
        self._clock = clock
        self._pool = pool
        self._cancelled = cancelled
        self._observer = observer
        self._next_message = 0.0
        self._cached_tokens: int | None = None
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._outputs = tuple(
            OutputAssembler(
                decode,
                request.prompt,
                StopScanner(parsed.stop_strings, parsed.include_stop_string),
                keep_output=parsed.keeps_output,
                keep_passes=parsed.stats_level is StatsLevel.DETAILED,
                min_tokens=request.sampling.min_tokens,
            )
            for _ in range(request.n)
        )

    async def stream(self, executor: Executor, write: Write) -> None:
        """Run the request to its end; the engine's iterator is closed exactly once, whatever happens.

        It is closed when all outputs ended, so that one which a stop string ended goes on in the engine until then.
        """
        events = executor.generate(self._request)
        try:
            while self._live and not self._cancelled.done():
                event = await unless(self._cancelled, anext(events, None))
                if event is not None:
                    await self._take(event, write)
                elif not self._cancelled.done():
                    raise EngineFault("the engine ended the request without a finish reason")
        finally:
            await events.aclose()
        if self._live:
            await self._end_early(write)
        last = partial(responses.finished, self._answer(), time.monotonic())
        await write(pb.GenerateResponse(finished=await self._in_pool(last)))

    def summary(self, ended: float, status: grpc.StatusCode, reason: str) -> Summary:
        """What observers are told at the end."""
        return Summary(
            clock=self._clock,
            ended=ended,
            status=status,
            reason=reason,
            caller=self._parsed.caller,
            request=self._parsed,
            prompt_tokens=len(self._request.prompt),
            cached_tokens=self._cached_tokens,
            outputs=tuple(
                Ending(output.end.reason if output.end else _UNENDED.get(status, FinishReason.ERROR), output.count)
                for output in self._outputs
            ),
            stats=sum((output.stats for output in self._outputs), SpeculationStats()),
            derived=self._model.info.derived_statistics,
        )

    def partial(self) -> bytes | None:
        """Totals of a request that failed after it was accepted: small enough for trailing metadata at any depth."""
        if self._clock.started is None:
            return None
        return responses.partial(self._answer(), time.monotonic()).SerializeToString()

    @property
    def _live(self) -> list[int]:
        """Outputs that have not ended."""
        return [index for index, output in enumerate(self._outputs) if output.end is None]

    async def _take(self, event: RequestEvent, write: Write) -> None:
        if isinstance(event, Started):
            self._clock.started = time.monotonic()
            self._cached_tokens = event.cached_tokens
            self._observer.started(observing.Started(self._parsed, len(self._request.prompt), event.cached_tokens))
            await write(responses.accepted(self._parsed, self._model, len(self._request.prompt)))
        elif event.output_index in self._live:
            await self._step(event, write)

    async def _end_early(self, write: Write) -> None:
        """The server ends the request: with its text so far, or as if it had never come where nothing was sent."""
        if self._clock.started is None:
            raise Draining("the server shut down while the request was waiting; send it to another one")
        end = Finish(FinishReason.CANCELLED)
        for index in self._live:
            await self._step(StepOutput(self._request.request_id, index, (), (), end), write)

    async def _step(self, step: StepOutput, write: Write) -> None:
        if step.token_ids:
            self._clock.last_token = time.monotonic()
            self._clock.first_token = self._clock.first_token or self._clock.last_token
            self._observer.emitted(len(step.token_ids), step.passes, self._clock.last_token)
        self._prompt_logprobs += step.prompt_logprobs
        by_token = self._parsed.granularity is Granularity.TOKEN
        take = partial(self._outputs[step.output_index].take, step, by_token=by_token)
        deltas = await self._in_pool(take)
        if self._parsed.granularity is Granularity.FINAL:
            return
        for delta in deltas:
            if not delta.empty:
                if delta.end is None:
                    await self._pause()
                await write(responses.chunk(step.output_index, delta))

    async def _pause(self) -> None:
        """Keep the asked interval between messages; the engine merges the passes of the meantime."""
        interval, deadline_at = self._parsed.min_interval, self._request.deadline
        if interval:
            until = self._next_message if deadline_at is None else min(self._next_message, deadline_at)
            await asyncio.wait((self._cancelled,), timeout=max(until - time.monotonic(), 0))
            self._next_message = time.monotonic() + interval

    async def _in_pool(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _answer(self) -> responses.Answer:
        return responses.Answer(
            request=self._parsed,
            prompt_tokens=len(self._request.prompt),
            cached_tokens=self._cached_tokens,
            prompt_logprobs=self._prompt_logprobs,
            outputs=self._outputs,
            clock=self._clock,
            derived=self._model.info.derived_statistics,
        )


def deadline(arrival: float, budget: float | None, remaining: float | None, now: float) -> float | None:
    """When the engine must end a request, from its time budget and what remains of the call's deadline."""
    ends = []
    if budget is not None:
        ends.append(arrival + budget)
    if remaining is not None:
        ends.append(now + remaining - min(_MARGIN_SECONDS, remaining * _MARGIN_SHARE))
    return min(ends, default=None)
