"""Clients that leave and times that run out, over gRPC and a real engine: its work ends, and all blocks are free."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes import Serving, serving
from tests.service.test_readers import client_process
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.service.gate import GatedExecutor, GateLimits
from trtspec.service.options import AdmissionOptions
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec

LONG = 1900
"""Tokens, each of a pass of its own: what ends earlier was ended."""
SOON = 10.0
"""Seconds for what takes one on a machine of its own."""


@contextlib.asynccontextmanager
async def engine_server(folder: Path, batch: int = 4) -> AsyncIterator[tuple[Serving, Executor]]:
    options = EngineOptions(kv_cache_mib=8, threads=1, max_batch_size=batch)
    engine = await open_executor(folder, options, in_process=True)
    gate = GatedExecutor(engine, GateLimits.of(AdmissionOptions(), batch))
    async with serving(gate) as server:  # type: ignore[arg-type]
        yield server, engine


def message(**fields: Any) -> pb.GenerateRequest:
    asked: dict[str, Any] = {
        "text": "the answer",
        "stopping": {"max_tokens": LONG, "ignore_eos": True},
        "speculation": {"mode": spec.SPECULATION_MODE_OFF},
    }
    return pb.GenerateRequest(**asked | fields)


async def free(engine: Executor, passes_before: int) -> None:
    """Wait until nothing is left in the engine; it has not worked to the end."""

    async def idle() -> None:
        while (stats := await engine.stats()).running or stats.waiting:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(idle(), SOON)
    stats = await engine.stats()
    assert stats.free_blocks == stats.total_blocks
    assert stats.passes - passes_before < LONG


async def disconnects(server: Serving) -> None:
    channel = grpc.aio.insecure_channel(server.address)
    call = rpc.InferenceStub(channel).Generate(message())
    for _ in range(2):
        await call.read()
    await channel.close()


async def cancels(server: Serving) -> None:
    call = rpc.InferenceStub(server.channel).Generate(message())
    for _ in range(2):
        await call.read()
    call.cancel()


async def is_killed(server: Serving) -> None:
    async with client_process(server.address) as client:
        client.kill()


async def outlasts_its_budget(server: Serving) -> None:
    call = rpc.InferenceStub(server.channel).Generate(message(time_budget={"nanos": 200_000_000}))
    last = [response async for response in call][-1]
    assert last.finished.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE


async def outlasts_its_deadline(server: Serving) -> None:
    call = rpc.InferenceStub(server.channel).Generate(message(), timeout=0.5)
    seen: list[pb.GenerateResponse] = []
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for response in call:
            seen.append(response)
    assert await call.code() in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert seen[0].HasField("accepted")


@pytest.mark.parametrize(
    "leaves", [disconnects, cancels, is_killed, outlasts_its_budget, outlasts_its_deadline], ids=lambda it: it.__name__
)
async def test_the_engine_stops_working_for_a_client_that_leaves_or_whose_time_is_over(
    engine_folder: Path, leaves: Callable[[Serving], Awaitable[None]]
) -> None:
    async with engine_server(engine_folder) as (server, engine):
        before = (await engine.stats()).passes
        await leaves(server)
        await free(engine, before)


async def code_of(call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> grpc.StatusCode:
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize(
    "logprobs",
    [
        pytest.param({}, id="plain"),
        pytest.param({"logprobs": {"logprobs": 3, "prompt_logprobs": 3}}, id="scored", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("point", ["queued", "prefill", "mid", "late", "twice"])
async def test_a_cancel_ends_its_own_call_alone_wherever_it_hits(
    engine_folder: Path, point: str, logprobs: dict[str, Any]
) -> None:
    async with engine_server(engine_folder, batch=1 if point == "queued" else 4) as (server, engine):
        stub = rpc.InferenceStub(server.channel)
        other = stub.Generate(message(text="another", stopping={"max_tokens": 200, "ignore_eos": True}))
        await other.read()
        late = {"stopping": {"max_tokens": 5, "ignore_eos": True}} if point == "late" else {}
        call = stub.Generate(message(**logprobs, **late))
        if point == "queued":
            while not (await engine.stats()).waiting:
                await asyncio.sleep(0)
        for _ in range({"prefill": 1, "mid": 4, "late": 7, "twice": 3}.get(point, 0)):
            await call.read()
        call.cancel()
        if point == "twice":
            call.cancel()
        if point != "late":
            assert await code_of(call) is grpc.StatusCode.CANCELLED
        responses = []
        while (response := await other.read()) is not grpc.aio.EOF:
            responses.append(response)
        assert responses[-1].finished.usage.completion_token_count == 200
        assert await code_of(other) is grpc.StatusCode.OK
        await free(engine, 0)


async def test_priorities_reach_the_scheduler_through_the_gate(engine_folder: Path) -> None:
    async with engine_server(engine_folder, batch=1) as (server, engine):
        stub = rpc.InferenceStub(server.channel)
        running = stub.Generate(message())
        await running.read()
        order: list[int] = []

        async def ask(priority: int) -> None:
            call = stub.Generate(message(priority=priority, stopping={"max_tokens": 3}))
            assert (await call.read()).HasField("accepted")
            order.append(priority)
            while await call.read() is not grpc.aio.EOF:
                pass

        waiting = []
        for count, priority in enumerate((0, -3, 7, 7, 2), start=1):
            waiting.append(asyncio.create_task(ask(priority)))
            while (await engine.stats()).waiting < count:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(*waiting)
        assert order == [7, 7, 2, 0, -3]
