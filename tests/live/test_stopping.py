"""Signals to a server that is at work: what runs ends whole, nothing new comes in, and nothing stays behind."""

from __future__ import annotations

import asyncio
import signal

import grpc

from tests.live.servers import ENDLESS, HealthWatch, LiveServer, StartServer, Stream, refused
from trtspec.client import Client
from trtspec.types import FinishReason

FLAGS = ("--kv-cache-mib", "32")


async def asked_to_stop(server: LiveServer, client: Client, number: signal.Signals) -> Stream:
    """Send the signal in mid-stream, and see the drain; gives a stream that keeps the server at work."""
    whole = await Stream(client, "the answer", max_tokens=300, ignore_eos=True).end()
    endless = await Stream(client, "on and on", **ENDLESS).begin()
    stream = await Stream(client, "the answer", max_tokens=300, ignore_eos=True).begin()
    async with grpc.aio.insecure_channel(server.address) as channel:
        watch = HealthWatch(channel)
        assert await watch.next() == "SERVING"
        server.signal(number)
        assert await watch.next() == "NOT_SERVING"
        watch.cancel()
    error = await refused(client)
    assert error.status is grpc.StatusCode.UNAVAILABLE and error.reason == "DRAINING"
    await stream.end()
    assert stream.finished and stream.finished.reason is FinishReason.LENGTH
    assert (stream.ids, stream.text) == (whole.ids, whole.text)
    return endless


async def test_sigterm_lets_running_streams_end_whole_and_the_last_one_ends_the_server(
    start_server: StartServer,
) -> None:
    server = start_server(*FLAGS)
    async with Client(server.address) as client, grpc.aio.insecure_channel(server.address) as channel:
        # A balancer's watch stays open. Cancelled by the closing port, it would leave a traceback in the log.
        watch = HealthWatch(channel)
        assert await watch.next() == "SERVING"
        endless = await asked_to_stop(server, client, signal.SIGTERM)
        await endless.cancel()
        assert await watch.next() == "NOT_SERVING"
        assert await watch.closed() is grpc.StatusCode.OK
        assert await asyncio.to_thread(server.wait) == 0
    assert server.log == ""


async def test_sigint_does_too_and_a_second_one_waits_for_nobody_but_tells_how_far_a_stream_came(
    start_server: StartServer,
) -> None:
    server = start_server(*FLAGS)
    async with Client(server.address) as client:
        endless = await asked_to_stop(server, client, signal.SIGINT)
        server.signal(signal.SIGINT)
        await endless.end()
        assert endless.finished and endless.finished.reason is FinishReason.CANCELLED
        assert endless.finished.completion_tokens == len(endless.ids)
        assert await asyncio.to_thread(server.wait) == 0
    assert server.log == ""
