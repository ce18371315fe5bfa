"""Messages beyond the 4 MiB that gRPC's sides allow by default: the server's own limit holds, and clients need none."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from tests.fakes import LIMITS, FakeExecutor, script_of, serving
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

PROMPT_BYTES = 5 << 20
LIMIT = 64 << 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "ids"])
async def test_a_prompt_of_five_mebibytes_passes_where_the_server_lets_it(kind: str) -> None:
    executor = FakeExecutor(script_of("ab", 1))
    roomy = replace(LIMITS, max_context_tokens=2 * PROMPT_BYTES, kv_cache_tokens=2 * PROMPT_BYTES)
    executor._info = replace(executor.info(), limits=roomy)
    message = {
        "text": pb.GenerateRequest(text="a b " * (PROMPT_BYTES // 4)),
        "ids": pb.GenerateRequest(token_ids={"ids": [200] * (PROMPT_BYTES // 2)}),
    }[kind]
    assert message.ByteSize() >= PROMPT_BYTES
    options = ServeOptions(port=0, admission=AdmissionOptions(max_message_bytes=LIMIT))
    async with serving(executor, options) as server:
        stub = rpc.InferenceStub(server.channel)
        got = [response async for response in stub.Generate(message)]
        assert got[-1].finished.usage.prompt_token_count == len(executor.requests[0].prompt)
        assert len(executor.requests[0].prompt) >= PROMPT_BYTES // 2
        too_much = pb.GenerateRequest(text="x" * LIMIT)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(too_much).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [response async for response in stub.Generate(pb.GenerateRequest(text="hi"))][-1].HasField("finished")


async def test_the_largest_message_follows_from_the_context() -> None:
    options = ServeOptions(port=0)
    assert options.message_bytes(128) == 1 << 20
    assert options.message_bytes(131_072) == 32 * 131_072
    assert ServeOptions(admission=AdmissionOptions(max_message_bytes=5)).message_bytes(131_072) == 5
