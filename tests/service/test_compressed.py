"""Compressed messages: small ones are taken; one that grows beyond the limit is refused without room for all of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import pytest

from tests.fakes import FakeExecutor, Pass, ids_of, serving
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

LIMIT = 1 << 20
"""Of a message, at the context of the fakes."""
GROWN = 192 << 20
CLIENT = f"""
import asyncio, grpc, sys
async def ask():
    async with grpc.aio.insecure_channel(sys.argv[1], options=[("grpc.max_send_message_length", -1)]) as channel:
        method = channel.unary_stream("/trtspec.v1.Inference/Generate")
        try:
            async for _ in method(bytes({GROWN}), compression=grpc.Compression(int(sys.argv[2])), timeout=60):
                pass
        except grpc.aio.AioRpcError as error:
            print(error.code().name)
asyncio.run(ask())
"""
COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
PEAK = Path("/proc/self/clear_refs")


def memory(key: str) -> int:
    """Bytes of this process: `VmRSS` are those now, `VmHWM` the most since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_a_small_message_may_be_compressed(compression: grpc.Compression) -> None:
    async with serving(FakeExecutor([Pass(ids_of("a"))])) as server:
        request = pb.GenerateRequest(text="x" * 100)
        call = rpc.InferenceStub(server.channel).Generate(request, compression=compression)
        assert [response.WhichOneof("event") async for response in call][-1] == "finished"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            large = pb.GenerateRequest(text="x" * (LIMIT + 1))
            await rpc.InferenceStub(server.channel).Generate(large, compression=compression).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_a_bomb_is_refused_in_bounded_memory(compression: grpc.Compression) -> None:
    async with serving(FakeExecutor([Pass(ids_of("a"))])) as server:
        PEAK.write_text("5")
        before = memory("VmRSS")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, server.address, str(compression.value)), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out.decode().split() == ["RESOURCE_EXHAUSTED"]
        assert memory("VmHWM") - before < GROWN / 4
