"""The life of a server: binding, health, reflection, drain, and the order in which things are freed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.fakes import FakeExecutor, Hold, Pass, engine_folder, ids_of, script_of, serving
from trtspec.config import EngineOptions
from trtspec.errors import EngineFolderError
from trtspec.service.address import CannotListen
from trtspec.service.options import AdmissionOptions, ServeOptions, TimeOptions
from trtspec.service.server import SERVICE, Server, serve
from trtspec.service.servicer import InferenceServicer
from trtspec.types import Health
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def holding() -> FakeExecutor:
    return FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])


async def check(channel: grpc.aio.Channel, service: str = "") -> int:
    response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return response.status


async def test_health_follows_the_engine() -> None:
    executor = FakeExecutor()
    async with serving(executor) as server:
        assert await check(server.channel) == await check(server.channel, SERVICE) == SERVING
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        await executor.become(Health.RESTARTING)
        assert (await watch.read()).status == NOT_SERVING
        await executor.become(Health.SERVING)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_requests_before_the_engine_is_open_are_unavailable() -> None:
    server = Server(ServeOptions(port=0), 1 << 20)
    address = await server.bind()
    async with grpc.aio.insecure_channel(address) as channel:
        assert await check(channel) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="still loading") as caught:
            await rpc.InferenceStub(channel).Generate(pb.GenerateRequest(text="hi")).read()
    await server.stop()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_reflection_lists_the_services() -> None:
    async with serving(FakeExecutor()) as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        response = await call.read()
        call.cancel()
    names = {service.name for service in response.list_services_response.service}
    assert names >= {"trtspec.v1.Inference", "grpc.health.v1.Health"}


async def test_a_taken_port_is_told_with_the_way_out() -> None:
    async with serving(FakeExecutor()) as server:
        port = int(server.address.rsplit(":", 1)[1])
        second = Server(ServeOptions(port=port), 1 << 20)
        with pytest.raises(CannotListen, match=rf"{port}; is the port in use\? Choose another with --port"):
            await second.bind()
        await second.stop()


async def begin(channel: grpc.aio.Channel) -> AsyncIterator[pb.GenerateResponse]:
    """Start a request; gives what follows its first message."""
    responses = aiter(rpc.InferenceStub(channel).Generate(pb.GenerateRequest(text="hi")))
    assert (await anext(responses)).HasField("accepted")
    return responses


async def test_a_draining_server_refuses_new_requests_and_ends_the_live_ones() -> None:
    executor = holding()
    hold = executor.script[1]
    async with serving(executor) as server:
        live = await begin(server.channel)
        draining = asyncio.create_task(server.server.drain())
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
        while (await watch.read()).status == SERVING:
            pass
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as caught:
            await begin(server.channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not draining.done()
        assert isinstance(hold, Hold)
        hold.event.set()
        rest = [response async for response in live]
        assert rest[-1].finished.outputs[0].finish_reason == pb.FINISH_REASON_LENGTH
        await draining
        # The engine comes back while the server drains: no traffic may be invited by that.
        await executor.become(Health.RESTARTING)
        await executor.become(Health.SERVING)
        assert await check(server.channel) == NOT_SERVING


class Run:
    """`serve` on a fake engine, in this process."""

    def __init__(self, executor: FakeExecutor, directory: Path, **options: float) -> None:
        self.executor = executor
        self.announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def open_engine(path: Path, engine_options: EngineOptions) -> FakeExecutor:
            return executor

        serving = serve(
            engine_folder(directory),
            ServeOptions(port=0, time=TimeOptions(**options)),
            EngineOptions(),
            lambda address, model: self.announced.set_result(address),
            open_engine,
        )
        self.task = asyncio.create_task(serving)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_in_order(number: signal.Signals, tmp_path: Path) -> None:
    run = Run(FakeExecutor(script_of("ab", 1)), tmp_path)
    async with grpc.aio.insecure_channel(await run.announced) as channel:
        assert await check(channel) == SERVING
        os.kill(os.getpid(), number)
        assert await run.task is True
    assert run.executor.shut


async def test_requests_that_outlast_the_drain_end_cancelled_with_a_last_message(tmp_path: Path) -> None:
    run = Run(holding(), tmp_path, drain_seconds=0.05)
    async with grpc.aio.insecure_channel(await run.announced) as channel:
        live = await begin(channel)
        os.kill(os.getpid(), signal.SIGTERM)
        rest = [response async for response in live]
    output = rest[-1].finished.outputs[0]
    assert output.finish_reason == pb.FINISH_REASON_CANCELLED and output.completion_token_count == 1
    assert "".join(response.chunk.text for response in rest) == "a"
    assert await run.task is True
    assert run.executor.closed == [run.executor.requests[0].request_id]


async def test_text_that_was_held_back_for_a_stop_string_is_sent_when_the_server_ends_a_request(
    tmp_path: Path,
) -> None:
    run = Run(holding(), tmp_path, drain_seconds=0.05)
    async with grpc.aio.insecure_channel(await run.announced) as channel:
        message = pb.GenerateRequest(text="hi", stopping={"stop_strings": ["ax"]})
        live = aiter(rpc.InferenceStub(channel).Generate(message))
        first = [await anext(live), await anext(live)]
        assert first[1].chunk.text == "" and len(first[1].chunk.token_ids) == 1
        os.kill(os.getpid(), signal.SIGTERM)
        rest = [response async for response in live]
    assert [response.chunk.text for response in rest[:-1]] == ["a"]
    assert rest[-1].finished.outputs[0].finish_reason == pb.FINISH_REASON_CANCELLED
    assert await run.task is True


async def test_a_request_that_waits_for_the_engine_when_the_server_ends_can_go_elsewhere(tmp_path: Path) -> None:
    run = Run(holding(), tmp_path, drain_seconds=0.05)
    run.executor.queue_open.clear()
    async with grpc.aio.insecure_channel(await run.announced) as channel:
        call = rpc.InferenceStub(channel).Generate(pb.GenerateRequest(text="hi"))
        reading = asyncio.ensure_future(call.read())
        await run.executor.asked.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError, match="while the request was waiting") as caught:
            await reading
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await run.task is True


async def test_a_pause_between_messages_ends_with_the_server(tmp_path: Path) -> None:
    script = [Pass(ids_of("a"), prefill=True), Pass(ids_of("b")), Hold(asyncio.Event()), Pass(ids_of("c"))]
    run = Run(FakeExecutor(script), tmp_path, drain_seconds=0.05)
    async with grpc.aio.insecure_channel(await run.announced) as channel:
        slow = pb.GenerateRequest(text="hi", stream_options={"min_interval": {"seconds": 60}})
        live = aiter(rpc.InferenceStub(channel).Generate(slow))
        first = [await anext(live), await anext(live)]
        os.kill(os.getpid(), signal.SIGTERM)
        rest = [response async for response in live]
    assert first[1].chunk.text + "".join(response.chunk.text for response in rest) == "ab"
    assert rest[-1].finished.outputs[0].finish_reason == pb.FINISH_REASON_CANCELLED
    assert await run.task is True


async def test_the_loop_runs_on_while_the_service_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    closing, release = threading.Event(), threading.Event()

    def close(servicer: InferenceServicer) -> None:
        closing.set()
        assert release.wait(20), "the loop that would release it stands still"

    monkeypatch.setattr(InferenceServicer, "close", close)
    server = Server(ServeOptions(port=0), 1 << 20)
    await server.bind()
    stopping = asyncio.create_task(server.stop())
    assert await asyncio.to_thread(closing.wait, 20)
    release.set()
    await stopping


async def test_a_second_signal_cuts_the_drain_short(tmp_path: Path) -> None:
    run = Run(holding(), tmp_path, drain_seconds=3600)
    async with grpc.aio.insecure_channel(await run.announced) as channel:
        live = await begin(channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        os.kill(os.getpid(), signal.SIGTERM)
        rest = [response async for response in live]
    assert rest[-1].finished.outputs[0].finish_reason == pb.FINISH_REASON_CANCELLED
    assert await run.task is True


async def test_an_engine_that_failed_for_good_ends_the_server(tmp_path: Path) -> None:
    run = Run(FakeExecutor(), tmp_path)
    await run.announced
    await run.executor.become(Health.FAILED)
    assert await run.task is False
    assert run.executor.shut


async def test_a_signal_during_the_load_ends_it(tmp_path: Path) -> None:
    loading = asyncio.Event()
    cancelled = asyncio.Event()

    async def open_engine(path: Path, engine_options: EngineOptions) -> FakeExecutor:
        loading.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    folder = engine_folder(tmp_path)
    task = asyncio.create_task(serve(folder, ServeOptions(port=0), EngineOptions(), lambda *_: None, open_engine))
    await loading.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task is True
    assert cancelled.is_set()


async def test_a_taken_port_costs_no_engine_load(tmp_path: Path) -> None:
    async def open_engine(path: Path, engine_options: EngineOptions) -> FakeExecutor:
        raise AssertionError("the engine was opened")

    async with serving(FakeExecutor()) as server:
        options = ServeOptions(port=int(server.address.rsplit(":", 1)[1]))
        with pytest.raises(CannotListen):
            await serve(engine_folder(tmp_path), options, EngineOptions(), lambda *_: None, open_engine)


async def test_an_unfinished_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineFolderError, match=r"manifest\.json"):
        await serve(tmp_path, ServeOptions(port=0), EngineOptions(), lambda *_: None)


async def test_model_info_tells_limits_capabilities_and_defaults() -> None:
    executor = FakeExecutor()
    async with serving(executor, ServeOptions(port=0, admission=AdmissionOptions(max_queued_requests=5))) as server:
        info = await rpc.InferenceStub(server.channel).GetModelInfo(pb.GetModelInfoRequest())
    assert (info.model, info.backend, info.dtype, info.has_chat_template) == ("tiny", "embedded", "float32", True)
    assert info.limits.max_queued_requests == 5 and info.limits.max_request_bytes == 1 << 20
    support = {item.feature: item for item in info.capabilities}
    assert support["top_p"].support == pb.SUPPORT_HONOURED
    assert support["guided_decoding"].support == pb.SUPPORT_REFUSED and support["guided_decoding"].reason
    assert list(info.defaults.eos_token_ids) == [0]
    assert info.defaults.speculation.max_draft_tokens == 4


async def test_tokenize_gives_the_ids_that_generate_uses() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    chat = {"messages": [{"role": "user", "content": "hé"}]}
    async with serving(executor) as server:
        stub = rpc.InferenceStub(server.channel)
        got = await stub.Tokenize(pb.TokenizeRequest(chat=chat, include_pieces=True))
        _ = [response async for response in stub.Generate(pb.GenerateRequest(chat=chat))]
    assert got.text == "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
    assert tuple(got.token_ids) == executor.requests[0].prompt
    assert got.pieces[0] == "<|im_start|>" and len(got.pieces) == len(got.token_ids)
