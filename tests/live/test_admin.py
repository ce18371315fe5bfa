"""An operator at a server of two front-ends: what he sets holds for both, and how he ends it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.live.servers import LiveServer, StartServer, Stream, refused, run
from trtspec.client import AdminClient, Client, RequestFailed
from trtspec.types import FinishReason, Method
from trtspec.v1 import admin_pb2 as pb

pytestmark = pytest.mark.slow
PROMPT = "the answer to all"


@pytest.fixture
def server(start_server: StartServer) -> LiveServer:
    return start_server("--frontends", "2", "--admin-port", "0")


def admin_address(server: LiveServer) -> str:
    found = re.search(r"the admin service listens on (\S+)", server.log)
    assert found, server.log
    return found[1]


@pytest.fixture
async def clients(server: LiveServer) -> AsyncIterator[list[Client]]:
    """Several connections, each to a front-end by chance; together they reach both."""
    opened = [Client(server.address) for _ in range(8)]
    yield opened
    for client in opened:
        await client.__aexit__(None, None, None)


async def test_what_is_set_holds_for_all_front_ends_and_no_text_changes(
    server: LiveServer, clients: list[Client]
) -> None:
    address = admin_address(server)
    options = {"max_tokens": 200, "ignore_eos": True, "seed": 5, "temperature": 0.8}
    expected = await clients[0].complete(PROMPT, **options)
    assert expected.finished.stats and expected.finished.stats.accepted > 0
    stream = await Stream(clients[1], PROMPT, **options).begin(3)
    assert run("admin", "speculation", "--off", "--server", address).out == "switched off\n"
    await stream.end()
    assert tuple(stream.ids) == expected.token_ids
    for client in clients:
        error = await refused(client, PROMPT, speculation="on")
        assert (error.status, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SPECULATION_REFUSED")
        answer = await client.complete(PROMPT, **options)
        assert (answer.accepted.method, answer.accepted.reason) == (Method.NONE, "switched off by the operator")
        assert answer.token_ids == expected.token_ids
        assert answer.finished.stats and answer.finished.stats.spec_steps == 0
    server.kill_worker()
    async with AdminClient(address) as admin:
        for state in (pb.SERVING_STATE_RESTARTING, pb.SERVING_STATE_SERVING):
            while (await admin.stats()).state != state:
                await asyncio.sleep(0.01)
        answer = await clients[0].complete(PROMPT, **options)
        assert answer.accepted.max_draft_tokens == 0 and answer.token_ids == expected.token_ids
        await admin.set_speculation(max_draft_tokens=2)
        answer = await clients[2].complete(PROMPT, **options)
        assert answer.accepted.max_draft_tokens == 2 and answer.token_ids == expected.token_ids
        assert answer.finished.stats and len(answer.finished.stats.drafted_at) == 2
        await admin.set_speculation(restore=True)
        assert (await clients[3].complete(PROMPT, speculation="on", **options)).token_ids == expected.token_ids


async def test_a_request_of_any_front_end_is_listed_and_cancelled(server: LiveServer, clients: list[Client]) -> None:
    address = admin_address(server)
    streams = [
        await Stream(client, PROMPT, max_tokens=16000, ignore_eos=True, request_id=f"r{index}").begin()
        for index, client in enumerate(clients[:4])
    ]
    listed = json.loads(run("admin", "requests", "--json", "--server", address).out)
    assert [item["request_id"] for item in listed] == ["r0", "r1", "r2", "r3"]
    assert all(item["state"] == "REQUEST_STATE_RUNNING" for item in listed)
    for index in range(4):
        assert run("admin", "cancel", f"r{index}", "--server", address).code == 0
    for stream in streams:
        await stream.end()
        assert stream.finished and stream.finished.reason is FinishReason.CANCELLED
        assert stream.finished.completion_tokens == len(stream.ids) > 0
    assert run("admin", "cancel", "r0", "--server", address).code == 1


async def test_a_drain_lets_requests_finish_and_ends_with_0(server: LiveServer, clients: list[Client]) -> None:
    address = admin_address(server)
    stream = await Stream(clients[0], PROMPT, max_tokens=2000, ignore_eos=True, speculation="off").begin()
    assert run("admin", "drain", "--server", address).out == "the server drains; 1 requests live\n"
    with pytest.raises(RequestFailed):
        await Client(server.address).complete(PROMPT)
    await stream.end()
    assert stream.finished and stream.finished.reason is FinishReason.LENGTH
    assert server.wait() == 0
