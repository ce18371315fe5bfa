"""What is let in to the engine, over all front-ends: places, shares of clients, and how long a request may wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.fakes import LIMITS, FakeExecutor, Hold, Pass, ids_of, serving
from tests.service.test_observing import Noting
from trtspec.errors import ClientBusy, EngineLost, Overloaded, QueueTimeout, RateLimited
from trtspec.service.gate import GatedExecutor, GateLimits
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.places import QueueLimits
from trtspec.service.quotas import ClientLimits
from trtspec.types import Request, RequestEvent, Started, StepOutput
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

ROOMY = QueueLimits(1000, 1000)


class Time:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def blocked() -> FakeExecutor:
    """An engine that starts nothing."""
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass(ids_of("b"))])
    executor.queue_open.clear()
    return executor


def holding() -> FakeExecutor:
    """An engine that gives a token to each, and no second one."""
    return FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])


def ask(name: str, tokens: int = 3, **fields: object) -> Request:
    return Request(name, tuple(range(1, tokens + 1)), 100, **fields)  # type: ignore[arg-type]


async def begun(gate: GatedExecutor, request: Request) -> AsyncGenerator[RequestEvent, None]:
    """A request that runs."""
    events = gate.generate(request)
    assert isinstance(await anext(events), Started)
    return events


async def queued(gate: GatedExecutor, request: Request) -> asyncio.Task[RequestEvent]:
    """A request that waits."""
    waiting = asyncio.create_task(anext(gate.generate(request)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def cancel(task: asyncio.Task[RequestEvent]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def refusal(gate: GatedExecutor, request: Request) -> Overloaded | ClientBusy | RateLimited:
    with pytest.raises((Overloaded, ClientBusy, RateLimited)) as caught:
        await anext(gate.generate(request))
    return caught.value


async def test_the_queue_is_bounded_beside_the_batch_and_its_places_come_back() -> None:
    executor = blocked()
    gate = GatedExecutor(executor, GateLimits(QueueLimits(batch_outputs=2, requests=3)))
    waiting = [await queued(gate, ask(str(number))) for number in range(5)]
    assert "3 requests wait" in str(await refusal(gate, ask("more")))
    assert len(executor.requests) == 5
    for task in waiting[:2]:
        await cancel(task)
    again = [await queued(gate, ask(str(number))) for number in range(2)]
    await refusal(gate, ask("more"))
    for task in (*waiting[2:], *again):
        await cancel(task)
    assert sorted(executor.closed) == sorted(request.request_id for request in executor.requests)


async def test_outputs_fill_the_batch_and_one_that_ended_makes_room() -> None:
    executor = FakeExecutor(
        [Pass(ids_of("a"), prefill=True)], [Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))]
    )
    gate = GatedExecutor(executor, GateLimits(QueueLimits(batch_outputs=2, requests=0)))
    events = await begun(gate, ask("two", n=2))
    assert "0 is the limit" in str(await refusal(gate, ask("more")))
    step = await anext(events)
    assert isinstance(step, StepOutput) and step.finish
    other = await begun(gate, ask("more"))
    await refusal(gate, ask("still more"))
    for item in (events, other):
        await item.aclose()
    await (await begun(gate, ask("last", n=2))).aclose()


async def test_prompt_tokens_that_wait_are_bounded_and_one_that_waits_alone_is_let_in() -> None:
    executor = blocked()
    gate = GatedExecutor(executor, GateLimits(QueueLimits(10, 10, tokens=20)))
    long = await queued(gate, ask("long", 50))
    error = await refusal(gate, ask("short", 1))
    assert "with 50 prompt tokens wait, this one has 1, and 20 is the limit" in str(error)
    await cancel(long)
    some = [await queued(gate, ask(str(number), 10)) for number in range(2)]
    await refusal(gate, ask("more", 1))
    executor.queue_open.set()
    assert [type(event) for event in await asyncio.gather(*some)] == [Started, Started]
    await (await begun(gate, ask("more", 20))).aclose()


async def test_live_requests_of_a_client_are_bounded_and_others_are_not_touched() -> None:
    gate = GatedExecutor(holding(), GateLimits(QueueLimits(3, 0), ClientLimits(live_requests=2)))
    live = [await begun(gate, ask(name, client="a")) for name in ("1", "2")]
    for _ in range(3):  # nor do those that are refused take places of the queue
        error = await refusal(gate, ask("3", client="a"))
        assert isinstance(error, ClientBusy) and "2 is the limit" in str(error)
    live.append(await begun(gate, ask("4", client="b")))
    await live[0].aclose()
    live.append(await begun(gate, ask("3", client="a")))
    for events in live:
        await events.aclose()


async def test_requests_of_a_minute_are_let_in_when_the_told_pause_is_over_and_not_before() -> None:
    time = Time()
    gate = GatedExecutor(holding(), GateLimits(ROOMY, ClientLimits(requests_per_minute=3)), time)
    for number in range(3):
        await (await begun(gate, ask(str(number)))).aclose()
    pause = float((await refusal(gate, ask("more"))).details["retry_seconds"])
    assert pause == 20
    time.now = pause - 0.01
    await refusal(gate, ask("more"))
    time.now = pause
    await (await begun(gate, ask("more"))).aclose()


async def test_tokens_are_counted_as_they_are_emitted() -> None:
    time = Time()
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Pass(ids_of("bcde"), 4, 3), Pass(ids_of("f"))])
    gate = GatedExecutor(executor, GateLimits(ROOMY, ClientLimits(tokens_per_minute=60)), time)
    async for _ in gate.generate(ask("a", 58)):
        pass
    # 60 - 58 - 6 = -4: a token more fits in five seconds, and ten in fourteen.
    for tokens, pause in ((1, 5), (10, 14)):
        error = await refusal(gate, ask("b", tokens))
        assert error.details == {"retry_seconds": f"{pause}.000", "closed_seconds": "5.000"}


async def test_a_prompt_that_was_never_computed_is_given_back() -> None:
    gate = GatedExecutor(blocked(), GateLimits(ROOMY, ClientLimits(tokens_per_minute=60)), Time())
    await cancel(await queued(gate, ask("a", 60)))
    await cancel(await queued(gate, ask("b", 60)))


async def test_a_request_that_waits_too_long_is_refused_and_never_reaches_a_pass() -> None:
    executor = blocked()
    gate = GatedExecutor(executor, GateLimits(QueueLimits(1, 0), queue_seconds=0.05))
    with pytest.raises(QueueTimeout, match="waited 0.05 s for a place in the batch"):
        await anext(gate.generate(ask("a")))
    assert executor.closed == ["a"]
    executor.queue_open.set()
    gate._queue_seconds = 60.0  # for a machine that is busy with other tests
    events = await begun(gate, ask("b"))  # its place is free
    # Only the wait is bounded: what runs may take its time.
    assert [event.token_ids async for event in events if isinstance(event, StepOutput)] == [ids_of("a"), ids_of("b")]


async def test_an_error_of_the_engine_passes_and_leaves_no_place_taken() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), EngineLost("gone")])
    gate = GatedExecutor(executor, GateLimits(QueueLimits(1, 0), ClientLimits(live_requests=1)))
    for _ in range(2):
        with pytest.raises(EngineLost, match="gone"):
            async for _ in gate.generate(ask("a")):
                pass


async def test_nothing_is_reordered_or_held_back() -> None:
    """Priorities are the scheduler's matter: it must know of every request at once."""
    executor = blocked()
    gate = GatedExecutor(executor, GateLimits(QueueLimits(1, 10)))
    waiting = [await queued(gate, ask(str(priority), priority=priority)) for priority in (0, -5, 9, 3)]
    assert [request.priority for request in executor.requests] == [0, -5, 9, 3]
    for task in waiting:
        await cancel(task)


# ------------------------------------------------------------------ over gRPC


async def status(call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> dict[str, object]:
    """The rich status of a call before which nothing was sent."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    found: dict[str, object] = {"code": caught.value.code()}
    for detail in status_pb2.Status.FromString(
        dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    ).details:
        message = getattr(error_details_pb2, detail.TypeName().rsplit(".", 1)[1])()
        detail.Unpack(message)
        found[type(message).__name__] = message
    return found


async def gated(executor: FakeExecutor, admission: AdmissionOptions, noting: Noting) -> dict[str, object]:
    """What the second of two calls gets while the first one waits."""
    gate = GatedExecutor(executor, GateLimits.of(admission, LIMITS.max_batch_size))
    options = ServeOptions(port=0, admission=admission)
    async with serving(gate, options, observer=noting) as server:  # type: ignore[arg-type]
        stub = rpc.InferenceStub(server.channel)
        first = stub.Generate(pb.GenerateRequest(text="hi"))
        await executor.asked.wait()
        found = await status(stub.Generate(pb.GenerateRequest(text="hi")))
        first.cancel()
        await executor.freed.wait()
    return found


@pytest.mark.parametrize(
    ("admission", "reason", "least"),
    [
        (AdmissionOptions(max_client_requests=1), "CLIENT_CONCURRENCY", 1),
        (AdmissionOptions(client_requests_per_minute=1), "CLIENT_RATE", 20),
        (AdmissionOptions(client_tokens_per_minute=2), "CLIENT_RATE", 20),
        (AdmissionOptions(max_queued_tokens=2), "OVERLOADED", 1),
        (AdmissionOptions(max_queued_bytes=4), "OVERLOADED", 1),
    ],
)
async def test_a_client_is_told_why_and_when_to_come_again_and_observers_are_too(
    admission: AdmissionOptions, reason: str, least: int
) -> None:
    noting = Noting()
    found = await gated(blocked(), admission, noting)
    assert found["code"] is grpc.StatusCode.RESOURCE_EXHAUSTED
    info, retry = found["ErrorInfo"], found["RetryInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo) and info.reason == reason
    assert isinstance(retry, error_details_pb2.RetryInfo) and least <= retry.retry_delay.ToTimedelta().seconds <= 60
    assert reason in [summary.reason for summary in noting.told if hasattr(summary, "reason")]


async def test_the_wait_is_over_with_a_status_that_invites_another_try() -> None:
    executor, noting = blocked(), Noting()
    gate = GatedExecutor(executor, GateLimits(ROOMY, queue_seconds=0.05))
    async with serving(gate, observer=noting) as server:  # type: ignore[arg-type]
        found = await status(rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi")))
    assert found["code"] is grpc.StatusCode.RESOURCE_EXHAUSTED and "RetryInfo" in found
    assert isinstance(found["ErrorInfo"], error_details_pb2.ErrorInfo)
    assert found["ErrorInfo"].reason == noting.summary.reason == "QUEUE_TIMEOUT"
    assert executor.closed == [executor.requests[0].request_id]
