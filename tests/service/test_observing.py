"""Observers are told of each request what happened to it, once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import pytest

from tests.fakes import FakeExecutor, Hold, Pass, ids_of, script_of, serving
from trtspec.errors import EngineLost
from trtspec.service.observing import Arrival, Ending, Several, Started, Summary
from trtspec.types import FinishReason, PassRecord
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc


@dataclass
class Noting:
    """Notes what it is told."""

    arrivals: list[Arrival] = field(default_factory=list)
    told: list[object] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    def arrived(self, arrival: Arrival) -> Noting:
        self.arrivals.append(arrival)
        return self

    def started(self, event: Started) -> None:
        self.told.append(event)

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None:
        self.told.append(tokens)

    def ended(self, summary: Summary) -> None:
        self.told.append(summary)
        self.over.set()

    @property
    def summary(self) -> Summary:
        assert isinstance(self.told[-1], Summary)
        return self.told[-1]


async def test_a_request_is_followed_from_its_arrival_to_its_end() -> None:
    first, second = Noting(), Noting()
    async with serving(FakeExecutor(script_of("abcdef", 3, 2)), observer=Several([first, second])) as server:
        request = pb.GenerateRequest(text="hi", tags={"task": "x"})
        call = rpc.InferenceStub(server.channel).Generate(request, metadata=(("traceparent", "00-1"),))
        _ = [response async for response in call]
    assert first == second
    [arrival] = first.arrivals
    assert arrival.message_bytes == request.ByteSize() and ("traceparent", "00-1") in arrival.metadata
    started, *tokens, summary = first.told
    assert isinstance(started, Started) and started.request.tags == {"task": "x"} and started.prompt_tokens == 2
    assert sum(tokens) == 6 and summary is first.summary  # type: ignore[arg-type] # numbers
    assert summary.status is grpc.StatusCode.OK and summary.reason == ""
    assert summary.outputs == (Ending(FinishReason.LENGTH, 6),) and summary.stats.completion_tokens == 6
    assert summary.stats.accepted == 3 and summary.caller and summary.caller.name == "127.0.0.1"
    assert summary.clock.arrival == arrival.at <= summary.ended


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (pb.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        (pb.GenerateRequest(text="hi", model="other"), grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
        (pb.GenerateRequest(text="hi" * 200), grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG"),
    ],
)
async def test_a_refusal_is_an_end(request_: pb.GenerateRequest, status: grpc.StatusCode, reason: str) -> None:
    noting = Noting()
    async with serving(FakeExecutor(), observer=noting) as server:
        with pytest.raises(grpc.aio.AioRpcError):
            await rpc.InferenceStub(server.channel).Generate(request_).read()
    [summary] = noting.told
    assert isinstance(summary, Summary) and (summary.status, summary.reason) == (status, reason)
    assert summary.outputs == ()


async def test_an_engine_that_is_lost_ends_with_what_there_was() -> None:
    noting = Noting()
    script = [Pass(ids_of("a"), prefill=True), EngineLost("gone")]
    async with serving(FakeExecutor(script), observer=noting) as server:
        with pytest.raises(grpc.aio.AioRpcError):
            _ = [
                response async for response in rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
            ]
    assert (noting.summary.status, noting.summary.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")
    assert noting.summary.outputs == (Ending(FinishReason.ERROR, 1),)


async def test_a_client_that_leaves_is_an_end() -> None:
    noting = Noting()
    script = [Pass(ids_of("a"), prefill=True), Hold(asyncio.Event())]
    async with serving(FakeExecutor(script), observer=noting) as server:
        call = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
        await call.read()
        await call.read()
        call.cancel()
        await asyncio.wait_for(noting.over.wait(), 10)
    assert noting.summary.status is grpc.StatusCode.CANCELLED
    assert noting.summary.outputs == (Ending(FinishReason.CANCELLED, 1),)
