"""Clients that stand still: slow readers, frozen and killed processes; each loses its request, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.fakes import LIMITS, FakeExecutor, Hold, Pass, ids_of, script_of, serving
from tests.service.test_observing import Noting
from trtspec.client.client import CHANNEL_OPTIONS
from trtspec.errors import ConfigError, SlowReader
from trtspec.service.listening import wire_limits
from trtspec.service.options import AdmissionOptions, ServeOptions, TimeOptions
from trtspec.service.writing import Writer
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

A_LOT = 20_000
"""Messages: more than the windows of a connection and gRPC's own buffers hold."""


def talkative() -> FakeExecutor:
    (id_,) = ids_of("a")
    executor = FakeExecutor([Pass((id_,), prefill=True), *[Pass((id_,)) for _ in range(A_LOT)]])
    executor._info = replace(
        executor.info(), limits=replace(LIMITS, max_context_tokens=2 * A_LOT, kv_cache_tokens=2 * A_LOT)
    )
    return executor


async def test_a_client_that_reads_nothing_loses_its_request_and_others_keep_theirs() -> None:
    executor, noting = talkative(), Noting()
    options = ServeOptions(port=0, admission=AdmissionOptions(reader_seconds=0.5))
    small = [("grpc.http2.bdp_probe", 0)]  # windows stay at 64 KiB
    async with (
        serving(executor, options, observer=noting) as server,
        grpc.aio.insecure_channel(server.address, options=small) as reader,
    ):
        slow = rpc.InferenceStub(reader).Generate(pb.GenerateRequest(text="hi"))
        await asyncio.wait_for(noting.over.wait(), 60)
        assert (noting.summary.status, noting.summary.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")
        assert executor.closed == [executor.requests[0].request_id]
        sent = noting.summary.outputs[0].tokens
        executor.script = tuple(script_of("ab", 1))
        other = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
        assert [response async for response in other][-1].HasField("finished")
        # What was on its way is still there for a client that reads on, and then the reason.
        read = 0
        with pytest.raises(grpc.aio.AioRpcError, match="no message was taken from the server for 0.5 s") as caught:
            async for response in slow:
                read += len(response.chunk.token_ids)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 0 < read <= sent < A_LOT


class Time:
    """A clock with timers, which stands until it is moved; for a writer in place of its loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Time:
        self.timers.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    async def pass_(self, seconds: float) -> None:
        """Let time pass, with what happens in it."""
        await asyncio.sleep(0)
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= until]:
            timer = min(due, key=lambda item: item[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = until
        await asyncio.sleep(0)


class Reader:
    """Takes a message when it is told to."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.ready = asyncio.Event()

    async def take(self, message: int) -> None:
        await self.ready.wait()
        self.taken.append(message)


@contextlib.contextmanager
def timed(reader: Reader) -> Iterator[tuple[Writer[int], Time]]:
    """A writer that waits ten seconds for its reader."""
    clock = Time()
    writer: Writer[int] = Writer(reader.take, 10.0, lambda: None)
    writer._loop = clock  # type: ignore[assignment]
    with writer:
        yield writer, clock


async def test_a_reader_that_is_slow_but_reads_is_let_alone() -> None:
    """Ten writes, each of which takes most of the bound."""
    reader = Reader()

    async def write() -> None:
        with timed(reader) as (writer, clock):
            for number in range(10):
                slow = asyncio.ensure_future(_read_after(clock, 9.0, reader))
                await writer.write(number)
                await slow

    await asyncio.create_task(write())
    assert reader.taken == list(range(10))


async def _read_after(clock: Time, seconds: float, reader: Reader) -> None:
    reader.ready.clear()
    await clock.pass_(seconds)
    reader.ready.set()


async def test_the_bound_is_for_a_write_and_not_for_what_comes_between() -> None:
    reader = Reader()
    reader.ready.set()
    with timed(reader) as (writer, clock):
        for number in range(3):
            await writer.write(number)
            await clock.pass_(35.0)
    assert reader.taken == [0, 1, 2]


async def _seconds_of(clock: Time, writer: Writer[int]) -> float:
    """How long a write takes that begins now."""
    begun = clock.now
    while not writer._late:
        await clock.pass_(1.0)
    return clock.now - begun


@pytest.mark.parametrize("idle", [0.0, 4.0, 19.0])
async def test_a_write_is_given_up_after_the_bound_and_the_task_can_go_on(idle: float) -> None:
    async def write() -> float:
        with timed(reader := Reader()) as (writer, clock):
            await clock.pass_(idle)
            passing = asyncio.ensure_future(_seconds_of(clock, writer))
            with pytest.raises(SlowReader, match="for 10 s"):
                await writer.write(1)
            assert reader.taken == []
            return await passing

    task = asyncio.create_task(write())
    assert await task == 10.0
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0


async def test_a_cancelled_write_stays_cancelled() -> None:
    async def take(message: int) -> None:
        await asyncio.Event().wait()

    async def write() -> None:
        with Writer(take, 60, lambda: None) as writer:
            await writer.write(1)

    task = asyncio.create_task(write())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_request_counts_as_waiting_until_its_first_message() -> None:
    told = []

    async def take(message: int) -> None:
        told.append(message)

    with Writer(take, 0, lambda: told.append("first")) as writer:
        await writer.write(1)
        await writer.write(2)
    assert told == ["first", 1, 2]


# ------------------------------------------------------------------ processes


@contextlib.asynccontextmanager
async def client_process(address: str, messages: int = 2) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client that has begun a request."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.service.frozen_client", address, str(messages)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout and await process.stdout.readline() == b"READING\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def holding() -> FakeExecutor:
    return FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])


@pytest.mark.slow
async def test_a_frozen_client_is_asked_whether_it_is_there_and_loses_its_request() -> None:
    """Its connection stays open, and its kernel takes what is sent."""
    executor = holding()
    options = ServeOptions(port=0, time=TimeOptions(keepalive_seconds=1, keepalive_timeout_seconds=1))
    async with serving(executor, options) as server, client_process(server.address) as client:
        client.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        await asyncio.wait_for(executor.freed.wait(), 60)
        assert time.monotonic() - begun < 20


@pytest.mark.slow
async def test_a_frozen_client_keeps_its_request_where_nobody_asks() -> None:
    """So that it is the asking that ends it above."""
    executor = holding()
    options = ServeOptions(port=0, time=TimeOptions(keepalive_seconds=0, keepalive_timeout_seconds=1))
    async with serving(executor, options) as server, client_process(server.address) as client:
        client.send_signal(signal.SIGSTOP)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(executor.freed.wait(), 6)


@pytest.mark.slow
async def test_a_killed_client_loses_its_request_at_once() -> None:
    executor = holding()
    async with serving(executor) as server, client_process(server.address) as client:
        os.kill(client.pid, signal.SIGKILL)
        await asyncio.wait_for(executor.freed.wait(), 20)


# ------------------------------------------------------------------ pings


async def pinging(server_seconds: float, client_seconds: float, lasts: float) -> grpc.StatusCode:
    """How a silent stream ends whose client asks at an interval."""
    executor = holding()
    options = ServeOptions(port=0, time=TimeOptions(least_ping_seconds=server_seconds))
    asks = {**dict(CHANNEL_OPTIONS), "grpc.keepalive_time_ms": round(client_seconds * 1000)}
    async with (
        serving(executor, options) as server,
        grpc.aio.insecure_channel(server.address, options=list(asks.items())) as channel,
    ):
        call = rpc.InferenceStub(channel).Generate(pb.GenerateRequest(text="hi"))
        rest = await beyond_two_messages(call)
        await asyncio.wait((rest,), timeout=lasts)
        let_go(executor)
        await asyncio.gather(rest, return_exceptions=True)
        code: grpc.StatusCode = await call.code()
        return code


Call = grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]


async def beyond_two_messages(call: Call) -> asyncio.Task[list[pb.GenerateResponse]]:
    """What comes after `accepted` and the first token; these are there."""
    responses = aiter(call)
    for _ in range(2):
        await anext(responses)

    async def rest() -> list[pb.GenerateResponse]:
        return [response async for response in responses]

    return asyncio.create_task(rest())


def let_go(executor: FakeExecutor) -> None:
    hold = executor.script[1]
    assert isinstance(hold, Hold)
    hold.event.set()


@pytest.mark.slow
async def test_a_client_may_ask_as_often_as_the_server_says_and_no_more_often() -> None:
    assert await pinging(0.5, 1.0, 8) is grpc.StatusCode.OK
    assert await pinging(5.0, 1.0, 12) is grpc.StatusCode.UNAVAILABLE


def test_our_client_asks_less_often_than_a_server_with_defaults_minds() -> None:
    """By far, for a ping may be late and the next one early."""
    server = dict(wire_limits(ServeOptions(), 1 << 20))
    client = dict(CHANNEL_OPTIONS)
    assert client["grpc.keepalive_time_ms"] >= 2 * server["grpc.http2.min_ping_interval_without_data_ms"]
    # Ten seconds is what gateways and balancers use.
    assert server["grpc.http2.min_ping_interval_without_data_ms"] <= 5000
    assert server["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.http2.max_pings_without_data"] == 0


# ------------------------------------------------------------------ age of connections


@pytest.mark.slow
@pytest.mark.parametrize("grace", [0.0, 1.0])
async def test_an_old_connection_is_closed_politely_and_its_stream_ends_by_itself_or_after_the_grace(
    grace: float,
) -> None:
    executor = holding()
    times = TimeOptions(max_connection_age_seconds=1, max_connection_grace_seconds=grace, drain_seconds=0)
    async with serving(executor, ServeOptions(port=0, time=times)) as server:
        rest = await beyond_two_messages(rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi")))
        await asyncio.wait((rest,), timeout=4)
        let_go(executor)
        if grace:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rest
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.wait_for(executor.freed.wait(), 20)
        else:
            assert [response.WhichOneof("event") for response in await rest] == ["chunk", "finished"]
        # The channel opens another connection by itself.
        executor.script = tuple(script_of("ab", 1))
        again = rpc.InferenceStub(server.channel).Generate(pb.GenerateRequest(text="hi"))
        assert [response async for response in again][-1].HasField("finished")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"max_connection_grace_seconds": 5.0}, "grace-seconds is 5 and --max-connection-age-seconds is 0"),
        (
            {"max_connection_age_seconds": 60.0, "max_connection_grace_seconds": 29.0},
            "grace-seconds is 29 and --drain-seconds is 30: .* raise it, or leave it at 0",
        ),
    ],
)
def test_a_grace_that_does_nothing_or_is_too_short_is_refused(times: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TimeOptions(**times)
    TimeOptions(max_connection_age_seconds=60, max_connection_grace_seconds=30)


def test_zero_is_never() -> None:
    never = TimeOptions(keepalive_seconds=0, max_connection_age_seconds=0)
    limits = dict(wire_limits(ServeOptions(time=never), 1 << 20))
    for name in ("keepalive_time_ms", "max_connection_age_ms", "max_connection_age_grace_ms"):
        assert limits[f"grpc.{name}"] == 2**31 - 1
    some = TimeOptions(keepalive_seconds=7, max_connection_age_seconds=3600, max_connection_grace_seconds=600)
    limits = dict(wire_limits(ServeOptions(time=some), 1 << 20))
    assert (limits["grpc.keepalive_time_ms"], limits["grpc.http2.ping_timeout_ms"]) == (7000, 20_000)
    assert (limits["grpc.max_connection_age_ms"], limits["grpc.max_connection_age_grace_ms"]) == (3_600_000, 600_000)
