"""`python -m scripts.bench.frontends.answering KIND ...`: a server over the scripted engine; prints its port.

`trtspec` is the service's own server, `bare` a grpc.aio server that streams the messages of that one, made before.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from scripts.bench.frontends.scripted import Passes
from trtspec.executors.messages import Command, Submit
from trtspec.executors.streams import RequestStreams
from trtspec.generation import GenerationDefaults
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.requests import parse_request
from trtspec.service.responses import Clock
from trtspec.service.run import GenerateRun
from trtspec.service.resolve import resolve
from trtspec.service.server import Server
from trtspec.service.text import Tokenizer
from trtspec.service.waiting import new_cue
from trtspec.types import (
    EngineInfo,
    EngineStats,
    Finish,
    FinishReason,
    Health,
    Limits,
    Method,
    OutputLaw,
    PassRecord,
    Request,
    RequestEvent,
    SamplingParams,
    Started,
    StepOutput,
)
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

CONTEXT_TOKENS = 4096
DRAFT_TOKENS = 4
STREAMS = 4096
FIRST_ID = 300
"""Ids from here on are pieces of words in any tokenizer of a language model."""


class ScriptedExecutor:
    """An `Executor` of the scripted engine: a first token, then `accepted` drafted ones and a bonus in each pass."""

    def __init__(self, accepted: int) -> None:
        self._accepted = accepted
        self._passes = Passes()
        self._streams = RequestStreams()
        self._keys: dict[str, str] = {}

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        key = ""

        def submit(command: Command) -> None:
            nonlocal key
            if isinstance(command, Submit):
                key = command.request.request_id

        def put(number: int) -> None:
            self._streams.deliver((self._event(key, number, request),))

        events = self._passes.read(put, self._streams.run(request, submit))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def _event(self, key: str, number: int, request: Request) -> RequestEvent:
        if number == 0:
            return Started(key)
        size = 1 + self._accepted if number > 1 else 1
        at = max(number - 2, 0) * (1 + self._accepted) + (number > 1)
        size = min(size, request.max_tokens - at)
        record = PassRecord(number, (1,) * DRAFT_TOKENS if self._accepted else (), size - 1, size, number == 1)
        over = at + size == request.max_tokens
        ids = tuple(range(FIRST_ID + at, FIRST_ID + at + size))
        return StepOutput(key, 0, ids, (record,), Finish(FinishReason.LENGTH) if over else None)

    def info(self) -> EngineInfo:
        limits = Limits(CONTEXT_TOKENS, STREAMS, DRAFT_TOKENS, DRAFT_TOKENS, CONTEXT_TOKENS, CONTEXT_TOKENS, 1 << 20)
        names = {"model": "scripted", "engine_id": "e" * 64, "engine_facts": "{}", "backend": "embedded"}
        kind = {"architecture": "none", "dtype": "float32", "quantization": "none"}
        return EngineInfo(
            **names, **kind, method=Method.NGRAM, limits=limits, output_law=OutputLaw.EXACT, default_draft_tokens=4
        )

    async def stats(self) -> EngineStats:
        return EngineStats()

    def health(self) -> Health:
        return Health.SERVING

    async def wait_for_change(self, health: Health) -> Health:
        await asyncio.get_running_loop().create_future()
        return Health.SERVING

    async def aclose(self) -> None:
        """Nothing is open."""


def model_of(executor: ScriptedExecutor) -> ServedModel:
    return ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "none"))


def asked(tokens: int) -> pb.GenerateRequest:
    """The request of all streams."""
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=range(FIRST_ID, FIRST_ID + 16)),
        stopping=pb.StoppingOptions(max_tokens=tokens, ignore_eos=True),
    )


async def answers(accepted: int, tokens: int, tokenizer: Tokenizer) -> list[pb.GenerateResponse]:
    """All messages of one stream of the service."""
    executor = ScriptedExecutor(accepted)
    model, messages = model_of(executor), []

    async def write(message: pb.GenerateResponse) -> None:
        messages.append(message)

    parsed = parse_request(asked(tokens), model)
    core = resolve(parsed, tokenizer, model, None)
    with ThreadPoolExecutor(1) as pool:
        run = GenerateRun(parsed, core, model, Clock(0.0), tokenizer.decode, pool, new_cue())
        await run.stream(executor, write)
    return messages


class Bare(rpc.InferenceServicer):
    """Streams prepared messages."""

    def __init__(self, messages: Sequence[pb.GenerateResponse]) -> None:
        self._messages = messages

    async def Generate(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext) -> None:
        for message in self._messages:
            await context.write(message)


async def bare(options: argparse.Namespace) -> None:
    server = grpc.aio.server()
    messages = await answers(options.accepted, options.tokens, Tokenizer.load(options.engine))
    rpc.add_InferenceServicer_to_server(Bare(messages), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def trtspec(options: argparse.Namespace) -> None:
    executor = ScriptedExecutor(options.accepted)
    server = Server(ServeOptions(port=0, max_queued_requests=STREAMS), 1 << 20)
    address = await server.bind()
    await server.open(model_of(executor), executor, Tokenizer.load(options.engine))
    print(address.rpartition(":")[2], flush=True)
    await server.follow(executor)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("bare", "trtspec"))
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--accepted", type=int, default=0)
    parser.add_argument("--uvloop", action="store_true")
    options = parser.parse_args(argv)
    if options.uvloop:
        import uvloop

        uvloop.install()
    asyncio.run({"bare": bare, "trtspec": trtspec}[options.kind](options))


if __name__ == "__main__":
    main(sys.argv[1:])
