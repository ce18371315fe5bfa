"""A reader that takes nothing holds a bounded number of bytes, and the other streams keep their pace."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import grpc

from scripts.bench.frontends.ours import ScriptedExecutor
from scripts.bench.frontends.wire import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, headers
from tests.models import tiny_tokenizer
from trtspec.generation import GenerationDefaults
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.server import Server
from trtspec.service.text import Tokenizer
from trtspec.types import Finish, FinishReason, PassRecord, Request, RequestEvent, SamplingParams, Started, StepOutput
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

STEPS = 800
IDS = tuple(range(1000, 1100))
"""Of each step: its message takes more than 200 bytes, so that a stream is more than the window."""
MESSAGE_BYTES = 200
WINDOW_BYTES = 65_535
"""What HTTP/2 lets a server send before the client says that it wants more."""
OTHERS = 5


class Taken(ScriptedExecutor):
    """Counts the steps that were taken, by request."""

    def __init__(self) -> None:
        super().__init__((), 1)
        self.taken: dict[str, int] = {}

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        yield Started(request.request_id)
        for number in range(STEPS):
            self.taken[request.request_id] = number + 1
            finish = Finish(FinishReason.LENGTH) if number == STEPS - 1 else None
            yield StepOutput(request.request_id, 0, IDS, (PassRecord(number, emitted=len(IDS)),), finish)


@asynccontextmanager
async def served(executor: Taken, message_bytes: int = 1 << 20) -> AsyncIterator[str]:
    server = Server(ServeOptions(port=0), message_bytes)
    address = await server.bind()
    model = ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "test"))
    await server.open(model, executor, Tokenizer(tiny_tokenizer()))
    try:
        yield address
    finally:
        await server.stop()


def message(name: str) -> pb.GenerateRequest:
    stopping = pb.StoppingOptions(max_tokens=1000, ignore_eos=True)
    return pb.GenerateRequest(request_id=name, token_ids=pb.TokenIds(ids=[5]), stopping=stopping)


async def begin_and_never_read(address: str) -> asyncio.StreamWriter:
    """A call by hand, because gRPC's own clients read ahead of their callers."""
    _, writer = await asyncio.open_connection(*address.split(":"), limit=1)
    body = message("slow").SerializeToString()
    opening = [PREFACE, frame(SETTINGS, 0, 0, b""), frame(HEADERS, END_HEADERS, 1, headers(rpc_path()))]
    opening.append(frame(DATA, END_STREAM, 1, b"\0" + struct.pack("!I", len(body)) + body))
    writer.writelines(opening)
    await writer.drain()
    return writer


def rpc_path() -> str:
    service = pb.DESCRIPTOR.services_by_name["Inference"]
    return f"/{service.full_name}/{service.methods_by_name['Generate'].name}"


async def test_what_a_reader_does_not_take_is_bounded_and_holds_up_nobody_else() -> None:
    executor = Taken()
    async with served(executor) as address:
        writer = await begin_and_never_read(address)
        async with grpc.aio.insecure_channel(address) as channel:
            stub = rpc.InferenceStub(channel)

            async def read(name: str) -> int:
                return len([response async for response in stub.Generate(message(name))])

            counts = await asyncio.gather(*(read(str(number)) for number in range(OTHERS)))
        assert counts == [STEPS + 2] * OTHERS
        assert 1 <= executor.taken["slow"] <= WINDOW_BYTES // MESSAGE_BYTES + 2
        writer.close()
