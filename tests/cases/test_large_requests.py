"""One large request among many streams: it is read or refused, and does not hold them up."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from tests.cases.test_slow_readers import STEPS, Taken, message, served
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

STREAMS = 20
LIMIT = 64 << 20
MOST_SECONDS = 5.0
"""Far more than any gap that was seen, and less than cutting 32 MiB into tokens takes, were that done on the loop."""
Code = grpc.StatusCode


async def gaps(found: list[float]) -> None:
    """The longest time for which the event loop did nothing else."""
    while True:
        begun = time.monotonic()
        await asyncio.sleep(0)
        found[0] = max(found[0], time.monotonic() - begun)


def ask(address: str, request: pb.GenerateRequest) -> grpc.StatusCode:
    """A client of its own, in a thread, with the limits that clients have by default; gives the status."""
    with grpc.insecure_channel(address) as channel:
        call = rpc.InferenceStub(channel).Generate(request)
        try:
            for _ in call:
                pass
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = call.code()
        return code


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.GenerateRequest(text="word " * ((32 << 20) // 5)), Code.INVALID_ARGUMENT),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300] * (5 << 19))), Code.INVALID_ARGUMENT),
        (pb.GenerateRequest(text="x" * (LIMIT + 1)), Code.RESOURCE_EXHAUSTED),
    ],
    ids=["32 MiB of text", "5 MiB of ids", "beyond the limit"],
)
async def test_a_large_request_is_answered_and_holds_no_stream_up(
    request_: pb.GenerateRequest, code: grpc.StatusCode
) -> None:
    executor, longest = Taken(), [0.0]
    async with served(executor, LIMIT) as address, grpc.aio.insecure_channel(address) as channel:
        stub = rpc.InferenceStub(channel)

        async def read(name: str) -> int:
            call = stub.Generate(message(name))
            return len([await call.read() for _ in range(STEPS // 10)])

        watching = asyncio.create_task(gaps(longest))
        large = asyncio.create_task(asyncio.to_thread(ask, address, request_))
        counts = await asyncio.gather(*(read(str(number)) for number in range(STREAMS)))
        assert await large is code
        watching.cancel()
    print(f"the longest gap is {1e3 * longest[0]:.0f} ms")
    assert counts == [STEPS // 10] * STREAMS
    assert longest[0] < MOST_SECONDS
