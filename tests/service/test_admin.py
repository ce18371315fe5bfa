"""The Admin service over a real server: what an operator reads, and what clients notice of what he does."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.fakes import FakeExecutor, engine_folder, ids_of
from tests.operators import OPTIONS, Named, begun, holding, operated
from trtspec import __version__
from trtspec.client import AdminClient, Chunk, Client, Finished, RequestFailed
from trtspec.config import EngineOptions
from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import ConfigError
from trtspec.generation import GenerationDefaults
from trtspec.service.address import CannotListen
from trtspec.service.admin_port import admin_port
from trtspec.service.exposure import check_admin_port
from trtspec.service.model import ServedModel
from trtspec.service.options import SecurityOptions, ServeOptions
from trtspec.service.server import serve
from trtspec.types import FinishReason, Health, Method, SamplingParams
from trtspec.v1 import admin_pb2 as pb
from trtspec.v1 import admin_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec


async def test_live_requests_are_listed_with_what_they_did_so_far() -> None:
    executor, hold = holding()
    async with operated(executor) as it:
        events, _ = await begun(
            it.client, request_id="one", tenant="team", cache_salt="secret", priority=3, max_tokens=9
        )
        before = time.time()
        (live,) = await it.admin.list_requests()
        hold.event.set()
        _ = [event async for event in events]
        assert await it.admin.list_requests() == []
    assert (live.request_id, live.tenant, live.client, live.priority) == ("one", "team", "", 3)
    assert live.state == pb.REQUEST_STATE_RUNNING
    assert (live.prompt_token_count, live.max_tokens) == (len(ids_of("hello")), 9)
    assert list(live.output_token_counts) == [5]
    assert (live.asked_draft_tokens, live.max_draft_tokens) == (4, 4)
    assert (live.speculation.drafted_count, live.speculation.accepted_count) == (4, 3)
    assert live.speculation.method == spec.SPECULATION_METHOD_NGRAM
    assert 0 <= live.age.ToNanoseconds() / 1e9 < 60 and abs(live.create_time.ToNanoseconds() / 1e9 - before) < 60
    assert "secret" not in str(live)


async def test_a_proven_client_is_named() -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        it.server.server._servicer._access = Named("alice")
        held = await begun(it.client, tenant="team")
        (live,) = await it.admin.list_requests()
    assert held and (live.tenant, live.client) == ("team", "alice")


async def test_pages_follow_each_other_oldest_first() -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        held = [await begun(it.client, request_id=f"r{i}") for i in range(5)]
        stub = rpc.AdminStub(grpc.aio.insecure_channel(it.address))
        pages, token = [], ""
        while not pages or token:
            page = await stub.ListRequests(pb.ListRequestsRequest(page_size=2, page_token=token))
            pages.append([live.request_id for live in page.requests])
            token = page.next_page_token
        assert [live.request_id for live in await it.admin.list_requests()] == [f"r{i}" for i in range(5)]
        assert (await stub.ListRequests(pb.ListRequestsRequest(page_size=5))).next_page_token == ""
        for request in (pb.ListRequestsRequest(page_size=-1), pb.ListRequestsRequest(page_token="x")):
            with pytest.raises(grpc.aio.AioRpcError, match="page_") as caught:
                await stub.ListRequests(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pages == [["r0", "r1"], ["r2", "r3"], ["r4"]] and len(held) == 5


async def test_a_cancelled_request_ends_with_its_text_so_far() -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        events, got = await begun(it.client, request_id="one")
        await it.admin.cancel("one")
        *_, finished = [event async for event in events]  # type: ignore[attr-defined]
        stats = await it.admin.stats()
        with pytest.raises(RequestFailed, match="no request 'one' lives") as caught:
            await it.admin.cancel("one")
        with pytest.raises(RequestFailed, match="request_id is empty"):
            await it.admin.cancel("")
    assert "".join(event.text for event in got if isinstance(event, Chunk)) == "abcde"
    assert isinstance(finished, Finished) and finished.reason is FinishReason.CANCELLED
    assert finished.completion_tokens == 5 and finished.stats and finished.stats.accepted == 3
    assert (caught.value.status, caught.value.reason) == (grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND")
    assert (stats.requests.cancelled_count, stats.requests.finished_count, stats.live_request_count) == (1, 0, 0)
    assert stats.speculation.accepted_count == 3


async def test_a_queued_request_can_be_cancelled() -> None:
    executor, _ = holding()
    executor.queue_open.clear()
    async with operated(executor) as it:
        asking = asyncio.create_task(it.client.complete("hello", request_id="one"))
        await executor.asked.wait()
        (live,) = await it.admin.list_requests()
        assert live.state == pb.REQUEST_STATE_QUEUED and list(live.output_token_counts) == [0]
        await it.admin.cancel("one")
        answer = await asking
    assert answer.finished.reason is FinishReason.CANCELLED and answer.text == ""


async def test_the_state_counts_all_requests_by_how_they_ended() -> None:
    executor, hold = holding()
    hold.event.set()
    async with operated(executor) as it:
        answers = [await it.client.complete("hello") for _ in range(3)]
        await it.client.complete("hello", stop="c")
        executor.queue_open.clear()
        with pytest.raises(RequestFailed):
            await it.client.complete("hello", time_budget=0.01)
        stats = await it.admin.stats()
    counted = sum((answer.finished.stats or SpeculationStats() for answer in answers), SpeculationStats())
    assert (stats.requests.finished_count, stats.requests.closed_count, stats.requests.failed_count) == (3, 1, 1)
    # The engine had gone on behind the stop string.
    assert stats.speculation.drafted_count == counted.drafted + 4
    assert (stats.server_version, stats.model, stats.engine_id) == (__version__, "tiny", "e" * 64)
    assert stats.state == pb.SERVING_STATE_SERVING and stats.frontend_count == 1
    assert not stats.setting.HasField("max_draft_tokens")
    assert (stats.setting.engine_max_draft_tokens, stats.setting.default_draft_tokens) == (8, 4)
    assert stats.uptime.ToNanoseconds() > 0


@pytest.mark.parametrize("health", [Health.RESTARTING, Health.FAILED])
async def test_the_state_tells_of_a_lost_engine(health: Health) -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        await executor.become(health)
        assert pb.ServingState.Name((await it.admin.stats()).state) == f"SERVING_STATE_{health.name}"


async def test_speculation_that_is_switched_off_is_refused_where_a_request_insists_and_told_to_others() -> None:
    executor, hold = holding()
    hold.event.set()
    async with operated(executor) as it:
        setting = await it.admin.set_speculation(off=True)
        assert (setting.max_draft_tokens, setting.default_draft_tokens) == (0, 0) and setting.HasField(
            "max_draft_tokens"
        )
        with pytest.raises(RequestFailed, match="switched off by the operator; ask for DEFAULT") as caught:
            await it.client.complete("hello", speculation="on")
        assert (caught.value.status, caught.value.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "SPECULATION_REFUSED",
        )
        assert caught.value.field == "speculation.mode" and not executor.requests
        answer = await it.client.complete("hello")
        off = await it.client.complete("hello", speculation="off")
        info = await it.client.model_info()
        await it.admin.set_speculation(restore=True)
        again = await it.client.complete("hello", speculation="on")
    accepted = answer.accepted
    assert (accepted.method, accepted.max_draft_tokens) == (Method.NONE, 0)
    assert accepted.reason == "switched off by the operator" and off.accepted.reason == ""
    assert answer.finished.stats and answer.finished.stats.spec_steps == 0
    assert info.defaults.speculation.mode == spec.SPECULATION_MODE_OFF
    assert (again.accepted.max_draft_tokens, again.accepted.reason) == (4, "")


async def test_a_cap_is_told_and_no_refusal() -> None:
    executor, hold = holding()
    hold.event.set()
    async with operated(executor) as it:
        setting = await it.admin.set_speculation(max_draft_tokens=3)
        assert (setting.max_draft_tokens, setting.default_draft_tokens) == (3, 3)
        capped = await it.client.complete("hello", speculation="on", max_draft_tokens=8)
        within = await it.client.complete("hello", max_draft_tokens=2)
        info = await it.client.model_info()
    assert (capped.accepted.method, capped.accepted.max_draft_tokens) == (Method.NGRAM, 3)
    assert capped.accepted.reason == "the operator allows at most 3 draft tokens"
    assert (within.accepted.max_draft_tokens, within.accepted.reason) == (2, "")
    assert info.defaults.speculation.max_draft_tokens == 3 and info.limits.max_draft_tokens == 8


async def test_a_request_that_began_without_drafts_is_listed_without_them_to_its_end() -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        await it.admin.set_speculation(off=True)
        held = [await begun(it.client, 5, request_id="plain")]
        await it.admin.set_speculation(restore=True)
        held.append(await begun(it.client, request_id="drafts"))
        await it.admin.set_speculation(max_draft_tokens=2)
        plain, drafts = await it.admin.list_requests()
    assert len(held) == 2
    assert (plain.asked_draft_tokens, plain.max_draft_tokens) == (4, 0)
    assert plain.speculation.method == spec.SPECULATION_METHOD_NONE
    assert (drafts.asked_draft_tokens, drafts.max_draft_tokens) == (4, 2)


async def test_a_request_that_waited_while_speculation_was_switched_off_is_refused_before_it_is_accepted() -> None:
    executor, hold = holding()
    hold.event.set()
    executor.queue_open.clear()
    async with operated(executor) as it:
        asking = asyncio.create_task(it.client.complete("hello", speculation="on"))
        await executor.asked.wait()
        await it.admin.set_speculation(off=True)
        executor.queue_open.set()
        with pytest.raises(RequestFailed, match="switched off by the operator") as caught:
            await asking
        assert await it.admin.list_requests() == []
    assert caught.value.partial is None


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pb.SetSpeculationRequest(), "setting is not set"),
        (pb.SetSpeculationRequest(off=False), "off is false"),
        (pb.SetSpeculationRequest(restore=False), "restore is false"),
        (pb.SetSpeculationRequest(max_draft_tokens=0), "max_draft_tokens is 0; allowed is 1 to 8"),
        (pb.SetSpeculationRequest(max_draft_tokens=9), "max_draft_tokens is 9; allowed is 1 to 8"),
    ],
)
async def test_a_setting_that_says_nothing_is_refused(request_: pb.SetSpeculationRequest, message: str) -> None:
    executor, _ = holding()
    async with operated(executor) as it, grpc.aio.insecure_channel(it.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
            await rpc.AdminStub(channel).SetSpeculation(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("setting", [{"off": True}, {"max_draft_tokens": 1}])
async def test_an_engine_without_drafts_has_nothing_to_limit(setting: dict[str, int]) -> None:
    async with operated(FakeExecutor(method=Method.NONE)) as it:
        with pytest.raises(RequestFailed, match="drafts nothing") as caught:
            await it.admin.set_speculation(**setting)  # type: ignore[arg-type]
        assert caught.value.status is grpc.StatusCode.FAILED_PRECONDITION
        await it.admin.set_speculation(restore=True)


async def test_an_engine_that_cannot_decode_without_drafts_says_so() -> None:
    executor = FakeExecutor(method=Method.MEDUSA)
    executor.serve_as(flow="engine")
    async with operated(executor) as it:
        for setting, reason in (({"off": True}, "without drafts"), ({"max_draft_tokens": 1}, "of the engine")):
            with pytest.raises(RequestFailed, match=f"while this engine runs: .*{reason}") as caught:
                await it.admin.set_speculation(**setting)  # type: ignore[arg-type]
            assert caught.value.status is grpc.StatusCode.FAILED_PRECONDITION
        assert not (await it.admin.stats()).setting.HasField("max_draft_tokens")


async def test_every_call_is_for_authorised_callers_only(caplog: pytest.LogCaptureFixture) -> None:
    executor, _ = holding()
    async with operated(executor, Named("admin")) as it:
        for token, status in ((None, grpc.StatusCode.UNAUTHENTICATED), ("wrong", grpc.StatusCode.PERMISSION_DENIED)):
            async with AdminClient(it.address, token=token) as client:
                calls = [
                    client.stats(),
                    client.list_requests(),
                    client.cancel("one"),
                    client.set_speculation(off=True),
                    client.drain(),
                ]
                for call in calls:
                    with pytest.raises(RequestFailed) as caught:
                        await call
                    assert caught.value.status is status
        assert not it.signals.stop.done() and it.executor.speculation_limit().max_depth is None
        async with AdminClient(it.address, token="right") as client:
            assert (await client.stats()).model == "tiny"
            await client.set_speculation(off=True)
    assert "drafts are limited to depth 0 since admin said so" in caplog.messages


async def test_a_drain_is_asked_for_and_answered_at_once() -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        held = await begun(it.client)
        assert held and await it.admin.drain() == 1
        assert await it.admin.drain() == 1
        assert it.signals.stop.done() and not it.signals.hurry.done()
        assert (await it.admin.stats()).state == pb.SERVING_STATE_DRAINING


async def test_a_drained_server_finishes_what_lives_and_ends_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor, hold = holding()
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open_engine(path: Path, options: EngineOptions) -> FakeExecutor:
        return executor

    announce = announced.set_result
    serving = serve(
        engine_folder(tmp_path), OPTIONS, EngineOptions(), lambda address, _: announce(address), open_engine
    )
    ending = asyncio.create_task(serving)
    address = await announced
    (listening,) = [line for line in caplog.messages if "admin service listens on" in line]
    async with Client(address) as client, AdminClient(listening.split()[-1]) as admin:
        events, got = await begun(client)
        assert await admin.drain() == 1
        async with grpc.aio.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
                pass
            watch.cancel()
        with pytest.raises(RequestFailed, match="shutting down"):
            await client.complete("hello")
        assert (await admin.stats()).live_request_count == 1
        hold.event.set()
        *_, finished = [event async for event in events]  # type: ignore[attr-defined]
    assert isinstance(finished, Finished) and finished.reason is FinishReason.LENGTH
    assert await ending is True


async def test_the_port_has_health_and_reflection() -> None:
    executor, _ = holding()
    async with operated(executor) as it, grpc.aio.insecure_channel(it.address) as channel:
        check = health_pb2.HealthCheckRequest(service="trtspec.v1.Admin")
        assert (await health_pb2_grpc.HealthStub(channel).Check(check)).status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        names = {service.name for service in (await call.read()).list_services_response.service}
        call.cancel()
    assert "trtspec.v1.Admin" in names and "trtspec.v1.Inference" not in names


async def test_a_taken_port_names_its_flag() -> None:
    executor, _ = holding()
    async with operated(executor) as it:
        taken = ServeOptions(port=0, security=SecurityOptions(admin_port=int(it.address.rsplit(":", 1)[1])))
        model = ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "test"))
        with pytest.raises(CannotListen, match="Choose another with --admin-port"):
            async with admin_port(it.executor, model, taken, it.signals):
                pass


async def test_the_tokens_of_operators_are_others_than_those_of_clients(tmp_path: Path) -> None:
    executor, _ = holding()
    tokens = {name: f"{name}-token-{'x' * 32}" for name in ("admin", "client")}
    for name in tokens:
        (tmp_path / name).write_text(f"{name} {tokens[name]}\n")
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open_engine(path: Path, options: EngineOptions) -> FakeExecutor:
        return executor

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    security = SecurityOptions(admin_port=port, admin_tokens=tmp_path / "admin", tokens=tmp_path / "client")
    options = ServeOptions(port=0, security=security)
    running = serve(
        engine_folder(tmp_path / "engine"),
        options,
        EngineOptions(),
        lambda at, _: announced.set_result(at),
        open_engine,
    )
    ending = asyncio.create_task(running)
    await asyncio.wait((announced, ending), return_when=asyncio.FIRST_COMPLETED)
    for token in (None, tokens["client"]):
        async with AdminClient(f"127.0.0.1:{port}", token=token) as admin:
            with pytest.raises(RequestFailed) as caught:
                await admin.stats()
            assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
    async with AdminClient(f"127.0.0.1:{port}", token=tokens["admin"]) as admin:
        await admin.drain()
    assert await ending is True


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "server.example"])
def test_a_public_admin_port_needs_tokens_and_tls_or_a_word(host: str, tmp_path: Path) -> None:
    def check(**more: object) -> None:
        check_admin_port(ServeOptions(security=SecurityOptions(admin_host=host, **more)))  # type: ignore[arg-type]

    tls = {"tls_certificate": tmp_path / "certificate", "tls_key": tmp_path / "key"}
    for open_ in ({}, tls, {"admin_tokens": tmp_path / "tokens"}):
        with pytest.raises(ConfigError, match=f"--admin-host {host} can be reached.*--admin-tokens"):
            check(admin_port=0, **open_)
    check(admin_port=0, allow_insecure=True)
    check(admin_port=0, admin_tokens=tmp_path / "tokens", **tls)
    check(admin_port=-1)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_a_loopback_admin_port_needs_none(host: str) -> None:
    check_admin_port(ServeOptions(security=SecurityOptions(admin_port=0, admin_host=host)))
