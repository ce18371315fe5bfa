"""Requests whose end does not come from their client: cancelled inside the server, or by its stop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator

import grpc
import pytest

from tests.fakes import LIMITS, FakeExecutor, Hold, Pass, ids_of, script_of, serving
from tests.service.test_observing import Noting
from tests.service.test_readers import talkative
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.types import Request, RequestEvent, Started, StepOutput
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc


class Cancelling(FakeExecutor):
    """What works for its requests is cancelled, by whatever mistake."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        events: list[RequestEvent] = [Started(request.request_id)]
        events += [StepOutput(request.request_id, 0, (id_,), ()) for id_ in ids_of("ab")]
        for event in events[: self.after]:
            yield event
        work = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(work.cancel)
        await work


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 cannot tell who cancelled a task")
@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_request_that_is_cancelled_inside_the_server_ends_with_a_status(after: int) -> None:
    noting = Noting()
    async with serving(Cancelling(after), observer=noting) as server:
        for _ in range(2):  # its id is free afterwards
            call = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi", request_id="same"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(_read(call), 20)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "cancelled inside the server" in caught.value.details()
        assert (noting.summary.status, noting.summary.reason) == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")


async def write_waits(noting: Noting) -> None:
    """Return when nothing goes on any more, for the client takes nothing."""
    sent = 0
    while not noting.told or sent != len(noting.told):
        sent = len(noting.told)
        await asyncio.sleep(0.3)


async def _read(call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> None:
    async for _ in call:
        pass


@pytest.mark.slow
async def test_a_client_that_leaves_while_a_message_is_being_written_closes_the_engines_iterator_once() -> None:
    executor, noting = talkative(), Noting()
    small = [("grpc.http2.bdp_probe", 0)]
    async with serving(executor, observer=noting) as server:
        async with grpc.aio.insecure_channel(server.address, options=small) as reader:
            call = rpc.InferenceStub(reader).Generate(pb.GenerateRequest(text="hi"))
            await write_waits(noting)
            call.cancel()
            await asyncio.wait_for(noting.over.wait(), 20)
        assert noting.summary.status is grpc.StatusCode.CANCELLED
        assert executor.closed == [executor.requests[0].request_id]


@pytest.mark.slow
async def test_a_server_stops_in_time_although_a_client_reads_nothing() -> None:
    executor, noting = talkative(), Noting()
    small = [("grpc.http2.bdp_probe", 0)]
    async with (
        serving(executor, observer=noting) as server,
        grpc.aio.insecure_channel(server.address, options=small) as reader,
    ):
        call = rpc.InferenceStub(reader).Generate(pb.GenerateRequest(text="hi"))
        await write_waits(noting)
        begun = time.monotonic()
        await server.server.end_requests()
        await server.server.stop()
        assert time.monotonic() - begun < 10
        assert executor.closed == [executor.requests[0].request_id]
        with pytest.raises(grpc.aio.AioRpcError):
            await _read(call)


async def test_more_long_calls_than_there_are_places_are_refused_at_once() -> None:
    """Case of gRPC's own limit, whose meaning changed between its versions: ours is our own."""
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    options = ServeOptions(port=0, admission=AdmissionOptions(max_queued_requests=2))
    limit = LIMITS.max_batch_size + 2
    async with serving(executor, options) as server:
        stub = rpc.InferenceStub(server.channel)
        calls = [stub.Generate(pb.GenerateRequest(text="hi")) for _ in range(limit + 3)]
        first = await asyncio.wait_for(asyncio.gather(*(call.read() for call in calls), return_exceptions=True), 20)
        refused = [error for error in first if isinstance(error, grpc.aio.AioRpcError)]
        assert [error.code() for error in refused] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3
        hold = executor.script[1]
        assert isinstance(hold, Hold)
        hold.event.set()
        whole = [call for call, answer in zip(calls, first, strict=True) if not isinstance(answer, Exception)]
        for call in whole:
            while await call.read() is not grpc.aio.EOF:
                pass
            assert await call.code() is grpc.StatusCode.OK


async def test_a_request_past_its_deadline_in_the_queue_is_answered_before_the_engine_starts_it() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    executor.queue_open.clear()
    async with serving(executor) as server:
        call = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"), timeout=0.5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(executor.freed.wait(), 20)
        deadline = executor.requests[0].deadline
        assert deadline is not None and deadline <= time.monotonic()
