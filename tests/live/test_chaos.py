"""What no client of ours sends: the server answers others meanwhile, and says what was wrong where that can be said."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import socket
from collections.abc import Iterator

import grpc
import pytest

from tests.live import raw_http2 as raw
from tests.live.servers import ENDLESS, LiveServer, StartServer, Stream
from trtspec.client import Client

pytestmark = pytest.mark.slow
GENERATE = "/trtspec.v1.Inference/Generate"
NOISE = random.Random(7).randbytes(1 << 16)
HALF_OPEN = 1000
HANDSHAKE_SECONDS = 20

MALFORMED = {
    "noise": NOISE,
    "another protocol": b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n",
    "a broken preface": raw.PREFACE[:-1] + b"X" * 64,
    "a frame larger than allowed": raw.OPENING + raw.frame(raw.DATA, NOISE, stream=1, length=(1 << 24) - 1),
    "data on a stream that nobody opened": raw.OPENING + raw.frame(raw.DATA, b"abc", stream=77),
    "headers on stream 0": raw.OPENING + raw.frame(raw.HEADERS, raw.call_headers(GENERATE), raw.END_HEADERS),
    "noise for headers": raw.OPENING + raw.frame(raw.HEADERS, NOISE[:200], raw.END_HEADERS, 1),
    "headers without an end": raw.OPENING + raw.frame(raw.HEADERS, raw.call_headers(GENERATE), stream=1),
    "settings of a wrong size": raw.PREFACE + raw.frame(raw.SETTINGS, b"12345"),
    "a ping of a wrong size": raw.OPENING + raw.frame(raw.PING, b"123"),
    "a flood of pings": raw.OPENING + raw.frame(raw.PING, b"12345678") * 5000,
    "a flood of settings": raw.OPENING + raw.frame(raw.SETTINGS) * 5000,
}


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> Iterator[LiveServer]:
    """It lives through all of this. gRPC's core tells of some of it, a line each."""
    server = start_server("--kv-cache-mib", "32", "--max-message-bytes", "65536")
    yield server
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "Traceback" not in server.log and "Error parsing 'grpc-encoding' metadata" in server.log


async def answers(client: Client) -> None:
    """The server answers."""
    answer = await asyncio.wait_for(client.complete("the answer", max_tokens=3, ignore_eos=True), 60)
    assert len(answer.token_ids) == 3


@pytest.mark.parametrize("close", [False, True], ids=["and stays", "and leaves"])
@pytest.mark.parametrize("kind", MALFORMED)
async def test_malformed_http2_harms_its_own_connection_alone(
    server: LiveServer, client: Client, kind: str, close: bool
) -> None:
    beside = await Stream(client, "the answer", max_tokens=200, ignore_eos=True).begin()
    await asyncio.gather(*(raw.send(server.address, MALFORMED[kind], close=close, patience=0.2) for _ in range(20)))
    await beside.end()
    assert len(beside.ids) == 200
    async with Client(server.address) as other:
        await answers(other)


def message(flag: int, body: bytes) -> bytes:
    """A message as gRPC frames it."""
    return bytes([flag]) + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ((("grpc-encoding", "snappy"),), b"Error parsing 'grpc-encoding' metadata"),
        ((("grpc-encoding", "gzip"),), b"Decompression failed"),
    ],
    ids=["unknown", "broken"],
)
async def test_a_compression_that_cannot_be_undone_is_told(
    server: LiveServer, client: Client, encoding: tuple[tuple[str, str], ...], told: bytes
) -> None:
    headers = raw.call_headers(GENERATE, *encoding)
    call = raw.OPENING + raw.frame(raw.HEADERS, headers, raw.END_HEADERS, 1)
    answer = await raw.send(server.address, call + raw.frame(raw.DATA, message(1, b"\x0a\x02hi"), raw.END_STREAM, 1))
    assert b"grpc-status" in answer and told in answer
    await answers(client)


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\xff", b"\x0a\x02h", NOISE[:5000]])
@pytest.mark.parametrize("method", ["Generate", "GetModelInfo", "Tokenize"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    channel: grpc.aio.Channel, method: str, data: bytes
) -> None:
    open_call = channel.unary_stream if method == "Generate" else channel.unary_unary
    call = open_call(f"/trtspec.v1.Inference/{method}")(data)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bytes that are no message" in await call.details()


async def test_a_message_over_the_limit_ends_its_call_and_no_other_one(
    channel: grpc.aio.Channel, client: Client
) -> None:
    beside = await Stream(client, "the answer", max_tokens=200, ignore_eos=True).begin()
    call = channel.unary_stream(GENERATE)(b"\x0a\x80\x80\x10" + b"x" * (1 << 18))
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(1 << 16) in await call.details()
    await beside.end()
    assert len(beside.ids) == 200


async def test_a_message_that_stops_halfway_holds_nobody_up(server: LiveServer, client: Client) -> None:
    begun = raw.OPENING + raw.frame(raw.HEADERS, raw.call_headers(GENERATE), raw.END_HEADERS, 1)
    halves = [
        asyncio.create_task(raw.send(server.address, begun + raw.frame(raw.DATA, message(0, b"x" * 99)[:50], 0, 1)))
        for _ in range(100)
    ]
    await answers(client)
    await asyncio.gather(*halves)


@pytest.fixture
def many_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_thousand_connections_that_say_nothing(server: LiveServer, client: Client, many_files: None) -> None:
    beside = await Stream(client, "the answer", **ENDLESS).begin()
    host, port = server.address.rsplit(":", 1)
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(HALF_OPEN)]
    async with Client(server.address) as other:  # one more connection
        await answers(other)
    await beside.begin(len(beside.chunks) + 10)
    await beside.cancel()
    # They are closed after a while, so that they hold no files for ever.
    ended = await asyncio.wait_for(
        asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True), HANDSHAKE_SECONDS + 40
    )
    assert len(ended) == HALF_OPEN
    for _, writer in silent:
        writer.close()
    await answers(client)


async def test_connections_that_are_cut_in_mid_stream_leave_no_request(server: LiveServer, client: Client) -> None:
    """Resets, as of a machine that lost its power."""
    begun = raw.frame(raw.HEADERS, raw.call_headers(GENERATE), raw.END_HEADERS, 1)
    asked = b"\x0a\x05hello"
    for _ in range(20):
        host, port = server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(raw.OPENING + begun + raw.frame(raw.DATA, message(0, asked), raw.END_STREAM, 1))
    await answers(client)
