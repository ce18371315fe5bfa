"""One admitted Generate request, from the engine's first event to `finished`.

It owns the request's outputs and the closing of the engine's iterator. Where messages go is a function it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor as Pool
from dataclasses import replace
from functools import partial
from typing import TypeVar

import grpc

from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import Draining, EngineFault
from trtspec.executors.base import Executor
from trtspec.service import observing, responses
from trtspec.service.assemble import OutputAssembler
from trtspec.service.detokenize import Decode, Piece, StopScanner
from trtspec.service.limits import under_limit
from trtspec.service.model import ServedModel
from trtspec.service.observing import Clock, Ending, RequestObserver, Summary
from trtspec.service.requests import Granularity, ParsedRequest, StatsLevel
from trtspec.service.waiting import Cue, Until
from trtspec.types import Finish, FinishReason, Request, Started, StepOutput, TokenLogprobs
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
    """Streams one request. What takes long to detokenise runs in the pool; a request is in one thread at a time."""

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
        piece: Piece | None = None,
    ) -> None:
        self._parsed = parsed
        self._request = request
        self._model = model
        self._clock = clock
        self._pool = pool
        self._cancelled = cancelled
        self._observer = observer
        self._by_token = parsed.granularity is Granularity.TOKEN
        self._next_message = 0.0
        self._cached_tokens: int | None = None
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._live = set(range(request.n))
        """Outputs that have not ended."""
        self._outputs = tuple(
            OutputAssembler(
                decode,
                request.prompt,
                StopScanner(parsed.stop_strings, parsed.include_stop_string),
                keep_output=parsed.keeps_output,
                keep_passes=parsed.stats_level is StatsLevel.DETAILED,
                min_tokens=request.sampling.min_tokens,
                piece=piece,
            )
            for _ in range(request.n)
        )

    async def stream(self, executor: Executor, write: Write) -> None:
        """Run the request to its end; the engine's iterator is closed exactly once, whatever happens.

        It is closed when all outputs ended, so that one which a stop string ended goes on in the engine until then.
        """
        events = executor.generate(self._request)
        try:
            with Until(self._cancelled) as until:
                async for event in events:
                    until.busy = True  # a message is not left half written
                    if isinstance(event, StepOutput):
                        await self._step(event, write)
                    else:
                        await self._begin(event, executor.speculation_limit().by, write)
                    until.busy = False
                    if not self._live or self._cancelled.done():
                        break
        finally:
            await events.aclose()
        if self._live and not self._cancelled.done():
            raise EngineFault("the engine ended the request without a finish reason")
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
    def _drafted(self) -> bool:
        """Something was: a request that began while speculation was off may draft once it is on again."""
        return any(output.stats.spec_steps for output in self._outputs)

    async def _begin(self, event: Started, limited_by: str, write: Write) -> None:
        """The request leaves the queue; what it is told of its drafts is what holds from now on."""
        speculation = under_limit(self._parsed.speculation, event.max_draft_tokens, limited_by)
        self._parsed = replace(self._parsed, speculation=speculation)
        self._clock.started = time.monotonic()
        self._cached_tokens = event.cached_tokens
        self._observer.started(observing.Started(self._parsed, len(self._request.prompt), event.cached_tokens))
        await write(responses.accepted(self._parsed, self._model, len(self._request.prompt), event.cached_tokens))

    async def _end_early(self, write: Write) -> None:
        """The server ends the request: with its text so far, or as if it had never come where nothing was sent."""
        if self._clock.started is None:
            raise Draining("the server shut down while the request was waiting; send it to another one")
        end = Finish(FinishReason.CANCELLED)
        for index in sorted(self._live):
            await self._step(StepOutput(self._request.request_id, index, (), (), end), write)

    async def _step(self, step: StepOutput, write: Write) -> None:
        if step.output_index not in self._live:
            return  # a stop string has ended it, which the engine does not know
        if step.token_ids:
            self._clock.last_token = time.monotonic()
            self._clock.first_token = self._clock.first_token or self._clock.last_token
            self._observer.emitted(len(step.token_ids), step.passes, self._clock.last_token)
        if step.prompt_logprobs:
            self._prompt_logprobs += step.prompt_logprobs
        output = self._outputs[step.output_index]
        if output.is_light(step):
            deltas = output.take(step, by_token=self._by_token)
        else:
            deltas = await self._in_pool(partial(output.take, step, by_token=self._by_token))
        if output.end is not None:
            self._live.remove(step.output_index)
        if self._parsed.granularity is Granularity.FINAL:
            return
        for delta in deltas:
            if not delta.empty:
                if self._parsed.min_interval and delta.end is None:
                    await self._pause()
                await write(responses.chunk(step.output_index, delta))

    async def _pause(self) -> None:
        """Keep the asked interval between messages; the engine merges the passes of the meantime."""
        deadline_at = self._request.deadline
        until = self._next_message if deadline_at is None else min(self._next_message, deadline_at)
        await asyncio.wait((self._cancelled,), timeout=max(until - time.monotonic(), 0))
        self._next_message = time.monotonic() + self._parsed.min_interval

    async def _in_pool(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _answer(self) -> responses.Answer:
        return responses.Answer(
            request=self._parsed,
            method=self._model.info.method if self._drafted else self._parsed.speculation.method,
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
