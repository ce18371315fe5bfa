"""The service's own server over the scripted engine, and a bare one that streams the messages of that, made before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from scripts.bench.frontends.answering import Load, Told
from scripts.bench.frontends.scripted import DRAFT_TOKENS, PROMPT_IDS, Gate, Step, steps_of
from trtspec.errors import SpeculationRefused
from trtspec.executors.base import Executor
from trtspec.generation import GenerationDefaults
from trtspec.service.gate import GatedExecutor, GateLimits
from trtspec.service.model import ServedModel
from trtspec.service.observing import NOBODY, Arrival, Clock
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.requests import parse_request
from trtspec.service.resolve import resolve
from trtspec.service.run import GenerateRun
from trtspec.service.server import Server
from trtspec.service.text import Tokenizer
from trtspec.service.waiting import new_cue
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import (
    EngineInfo,
    EngineStats,
    Health,
    Limits,
    Method,
    OutputLaw,
    Request,
    RequestEvent,
    SamplingParams,
    Started,
    StepOutput,
)
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

_CONTEXT_TOKENS = 4096
_PATH = "/trtspec.v1.Inference/Generate"
Context = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]


class ScriptedExecutor:
    """An `Executor` that gives each request the same steps, as fast as they are read."""

    def __init__(self, steps: Sequence[Step], streams: int) -> None:
        self._steps = steps
        self._gate = Gate(streams)
        limits = Limits(_CONTEXT_TOKENS, streams, DRAFT_TOKENS, DRAFT_TOKENS, _CONTEXT_TOKENS, _CONTEXT_TOKENS, 1 << 20)
        self._info = EngineInfo(
            model="scripted",
            engine_id="e" * 64,
            engine_facts="{}",
            backend="embedded",
            method=Method.NGRAM,
            architecture="none",
            dtype="none",
            quantization="none",
            limits=limits,
            output_law=OutputLaw.EXACT,
            default_draft_tokens=DRAFT_TOKENS,
        )

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        async with self._gate.passed():
            yield Started(request.request_id)
            for step in self._steps:
                yield StepOutput(request.request_id, 0, step.token_ids, step.passes, step.finish)

    def info(self) -> EngineInfo:
        return self._info

    async def stats(self) -> EngineStats:
        return EngineStats()

    def health(self) -> Health:
        return Health.SERVING

    async def wait_for_change(self, health: Health) -> Health:
        await asyncio.Event().wait()
        return health

    def cancel(self, request_id: str) -> bool:
        return False

    def speculation_limit(self) -> SpeculationLimit:
        return NO_LIMIT

    async def limit_speculation(self, limit: SpeculationLimit) -> SpeculationLimit:
        raise SpeculationRefused("steps that were written before do not depend on a limit")

    async def wait_for_limit(self, limit: SpeculationLimit) -> SpeculationLimit:
        await asyncio.Event().wait()
        return limit

    async def aclose(self) -> None:
        """Nothing is open."""


async def trtspec(load: Load, tell: Callable[[Told], None]) -> None:
    """The service's own server."""
    limits = GateLimits.of(AdmissionOptions(), load.streams)
    executor = GatedExecutor(ScriptedExecutor(steps_of(load.accepted, load.tokens), load.streams), limits)
    server = Server(ServeOptions(port=0), 1 << 20)
    address = await server.bind()
    await server.open(_model(executor), executor, Tokenizer.load(load.engine))
    tell(_told(int(address.rpartition(":")[2]), load))
    await server.follow(executor)


class Bare(rpc.InferenceServicer):
    """Streams prepared messages."""

    def __init__(self, messages: Sequence[pb.GenerateResponse], streams: int) -> None:
        self._messages = messages
        self._gate = Gate(streams)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        async with self._gate.passed():
            for message in self._messages:
                await context.write(message)


async def bare(load: Load, tell: Callable[[Told], None]) -> None:
    """As little as grpc.aio allows."""
    server = grpc.aio.server()
    rpc.add_InferenceServicer_to_server(Bare(await _answer(load), load.streams), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tell(_told(port, load))
    await server.wait_for_termination()


async def _answer(load: Load) -> list[pb.GenerateResponse]:
    """All messages of one stream of the service."""
    executor = ScriptedExecutor(steps_of(load.accepted, load.tokens), 1)
    model, tokenizer = _model(executor), Tokenizer.load(load.engine)
    messages: list[pb.GenerateResponse] = []

    async def write(message: pb.GenerateResponse) -> None:
        messages.append(message)

    parsed = parse_request(_request(load), model)
    core = resolve(parsed, tokenizer, model, None)
    observer = NOBODY.arrived(Arrival(0.0, 0, "", ()))
    with ThreadPoolExecutor(1) as pool:
        run = GenerateRun(parsed, core, model, Clock(0.0), tokenizer.decode, pool, new_cue(), observer)
        await run.stream(executor, write)
    return messages


def _model(executor: Executor) -> ServedModel:
    return ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "none"))


def _request(load: Load) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=PROMPT_IDS),
        stopping=pb.StoppingOptions(max_tokens=load.tokens, ignore_eos=True),
    )


def _told(port: int, load: Load) -> Told:
    """Before the messages of the steps comes `accepted`, and after them `finished`."""
    messages = len(steps_of(load.accepted, load.tokens)) + 2
    return Told(port, _PATH, _request(load).SerializeToString().hex(), messages)
