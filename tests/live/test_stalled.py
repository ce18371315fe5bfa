"""An engine whose process stands still, as the kernel or a debugger may leave it: health tells, and it recovers."""

from __future__ import annotations

import os
import signal
import time

import grpc
import pytest

from tests.live.servers import ENDLESS, HealthWatch, StartServer, Stream, refused
from trtspec.client import Client

STALL_SECONDS = 2
SOON = 20
"""Beside the bound: for a machine that is busy with other tests."""


@pytest.mark.slow
@pytest.mark.parametrize("frontends", ["1", "2"])
async def test_a_frozen_engine_is_noticed_in_the_stated_time_and_replaced(
    start_server: StartServer, frontends: str
) -> None:
    server = start_server("--kv-cache-mib", "32", "--stall-seconds", str(STALL_SECONDS), "--frontends", frontends)
    async with Client(server.address) as client, grpc.aio.insecure_channel(server.address) as channel:
        before = await client.complete("the answer", max_tokens=50, ignore_eos=True)
        watch = HealthWatch(channel)
        assert await watch.next() == "SERVING"
        stream = await Stream(client, "on and on", **ENDLESS).begin(3)
        frozen = server.worker
        os.kill(frozen, signal.SIGSTOP)
        since = time.monotonic()
        assert await watch.next() == "NOT_SERVING"
        error = await stream.failure()
        assert time.monotonic() - since < STALL_SECONDS + SOON
        assert error.status is grpc.StatusCode.UNAVAILABLE and error.reason == "ENGINE_LOST"
        assert f"said nothing for {STALL_SECONDS} s over its work" in str(error)
        assert error.partial is not None and error.partial.completion_tokens == len(stream.ids)
        assert (await refused(client)).status is grpc.StatusCode.UNAVAILABLE
        assert await watch.next() == "SERVING"
        watch.cancel()
        assert server.worker != frozen
        after = await client.complete("the answer", max_tokens=50, ignore_eos=True)
    assert (after.token_ids, after.text) == (before.token_ids, before.text)
    assert "is killed; 1 requests lost" in server.log and "Traceback" not in server.log
