"""The engine's process dies in mid-stream: what clients see, and how the server comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.live.servers import ENDLESS, HealthWatch, LiveServer, StartServer, Stream, refused
from trtspec.client import Client
from trtspec.types import FinishReason

PROMPTS = ("the answer", "another question", "a third one")


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> LiveServer:
    return start_server("--kv-cache-mib", "32")


@pytest.fixture
async def watch(channel: grpc.aio.Channel) -> AsyncIterator[HealthWatch]:
    watch = HealthWatch(channel)
    while await watch.next() != "SERVING":
        pass
    yield watch
    watch.cancel()


async def kill_in_mid_stream(server: LiveServer, client: Client, prompt: str) -> Stream:
    stream = await Stream(client, prompt, **ENDLESS).begin(3)
    server.kill_worker()
    return stream


async def test_a_killed_worker_gives_unavailable_with_partial_usage_and_the_server_recovers(
    server: LiveServer, client: Client, watch: HealthWatch
) -> None:
    before = await client.complete("the answer", max_tokens=100, ignore_eos=True)
    other = await Stream(client, PROMPTS[2], **ENDLESS).begin(3)
    dead = server.worker
    stream = await kill_in_mid_stream(server, client, PROMPTS[1])
    for lost in (stream, other):
        error = await lost.failure()
        assert error.status is grpc.StatusCode.UNAVAILABLE and error.reason == "ENGINE_LOST"
        assert "process died" in str(error)
        assert error.partial is not None and error.partial.stats is not None
        assert error.partial.reason is FinishReason.ERROR
        assert error.partial.completion_tokens == len(lost.ids) == error.partial.stats.completion_tokens >= 3
        assert lost.accepted and error.partial.prompt_tokens == lost.accepted.prompt_tokens
        assert error.partial.stats.decode_passes == len(lost.passes) - 1
    assert await watch.next() == "NOT_SERVING"
    meanwhile = await refused(client)
    assert meanwhile.status is grpc.StatusCode.UNAVAILABLE and "restarting; try again" in str(meanwhile)
    assert await watch.next() == "SERVING"
    assert server.worker != dead
    after = await client.complete("the answer", max_tokens=100, ignore_eos=True)
    assert (after.token_ids, after.text) == (before.token_ids, before.text)
    assert len(server.log.splitlines()) == 1 and "2 requests lost" in server.log


async def test_the_third_crash_in_a_short_time_ends_the_server_with_a_failure(
    server: LiveServer, client: Client, watch: HealthWatch
) -> None:
    crashes = server.log.count("requests lost")
    for crash in range(crashes, 3):
        stream = await kill_in_mid_stream(server, client, f"crash {crash}")
        assert (await stream.failure()).status is grpc.StatusCode.UNAVAILABLE
        assert await watch.next() == "NOT_SERVING"
        if crash < 2:
            assert await watch.next() == "SERVING"
    assert await asyncio.to_thread(server.wait) == 1
    assert "Traceback" not in server.log
