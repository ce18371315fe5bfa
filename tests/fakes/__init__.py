"""A scripted engine and a server around it: everything above the executor can be tested without a model."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

import grpc
from transformers import PreTrainedTokenizerFast

from tests.models import tiny_tokenizer
from trtspec import generation, manifest
from trtspec.errors import DeadlineExceeded, DuplicateRequest, EngineLost, RequestError
from trtspec.generation import GenerationDefaults
from trtspec.service.model import ServedModel
from trtspec.service.observing import NOBODY, Observer
from trtspec.service.options import ServeOptions
from trtspec.service.server import Server
from trtspec.service.text import Tokenizer
from trtspec.speculative import SpeculativeConfig
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
    TokenLogprob,
    TokenLogprobs,
)

EOS = 0
"""<|endoftext|> of the tiny tokenizer."""
LIMITS = Limits(
    max_context_tokens=128,
    max_batch_size=4,
    max_draft_tokens=8,
    max_tree_nodes=8,
    max_pass_tokens=64,
    kv_cache_tokens=4096,
    vocabulary_size=267,
)


@dataclass(frozen=True)
class Pass:
    """A scripted pass: its tokens, how many were drafted and how many of those were accepted."""

    ids: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    prefill: bool = False


@dataclass(frozen=True)
class Hold:
    """The engine waits here, at most until the request's deadline. An event serves one event loop, so one test."""

    event: asyncio.Event = field(default_factory=asyncio.Event)


Script = Sequence[Pass | Hold | RequestError]


class FakeExecutor:
    """Plays the same script to every request, with the cuts that a real engine makes.

    Output i of a request plays the i-th of `script` and `others`, in turn with the rest; a `Hold` holds them all.
    """

    def __init__(
        self,
        script: Script = (),
        *others: Script,
        method: Method = Method.NGRAM,
        merge: bool = False,
        cached_tokens: int | None = None,
        unverified_target: bool = False,
    ) -> None:
        self.script = tuple(script)
        self.others = others
        self.merge = merge
        self.cached_tokens = cached_tokens
        self.requests: list[Request] = []
        self.closed: list[str] = []
        self.asked = asyncio.Event()
        self.freed = asyncio.Event()
        self.queue_open = asyncio.Event()
        self.queue_open.set()
        self.ended = asyncio.Event()
        self.shut = False
        self._health = Health.SERVING
        self._changed = asyncio.Condition()
        drafts = method is not Method.NONE
        self._info = EngineInfo(
            model="tiny",
            engine_id="e" * 64,
            engine_facts="{}",
            backend="embedded",
            method=method,
            architecture="LlamaForCausalLM",
            dtype="float32",
            quantization="none",
            limits=LIMITS if drafts else replace(LIMITS, max_draft_tokens=0, max_tree_nodes=0),
            output_law=OutputLaw.EXACT,
            default_draft_tokens=4 if drafts else 0,
            unverified_target=unverified_target,
        )

    def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        if any(live.request_id == request.request_id for live in self.requests if live.request_id not in self.closed):
            raise DuplicateRequest(f"request_id {request.request_id} is live")
        self.requests.append(request)
        self.asked.set()
        return Events(self, request)

    def info(self) -> EngineInfo:
        return self._info

    async def stats(self) -> EngineStats:
        return EngineStats()

    def health(self) -> Health:
        return self._health

    async def wait_for_change(self, health: Health) -> Health:
        async with self._changed:
            await self._changed.wait_for(lambda: self._health is not health)
            return self._health

    async def become(self, health: Health) -> None:
        async with self._changed:
            self._health = health
            self._changed.notify_all()

    async def aclose(self) -> None:
        """End every request with `EngineLost`."""
        self.shut = True
        self.ended.set()


class Events:
    """The events of one request; counts how often it is closed."""

    def __init__(self, executor: FakeExecutor, request: Request) -> None:
        self._executor = executor
        self._request = request
        self._events = self._play()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> RequestEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        self._executor.closed.append(self._request.request_id)
        await self._events.aclose()
        self._executor.freed.set()

    async def _play(self) -> AsyncGenerator[RequestEvent, None]:
        if not await self._wait(self._executor.queue_open):
            raise DeadlineExceeded("the time was over in the queue")
        yield Started(self._request.request_id, self._executor.cached_tokens)
        play = self._merged if self._executor.merge else self._steps
        live = {index: play(index) for index in range(self._request.n)}
        while live:
            for index, steps in list(live.items()):
                step = next(steps)
                if isinstance(step, RequestError):
                    raise step
                if isinstance(step, StepOutput):
                    yield step
                    if step.finish:
                        del live[index]
                elif not await self._wait(step.event):
                    for late in live:
                        yield StepOutput(self._request.request_id, late, (), (), Finish(FinishReason.DEADLINE))
                    return

    def _merged(self, output_index: int) -> Iterator[StepOutput]:
        steps = [step for step in self._steps(output_index) if isinstance(step, StepOutput)]
        yield reduce(StepOutput.merge, steps)

    async def _wait(self, event: asyncio.Event) -> bool:
        """Wait for the event; False if the request's time was over first."""
        tasks = [asyncio.create_task(event.wait()), asyncio.create_task(self._executor.ended.wait())]
        left = None if self._request.deadline is None else max(self._request.deadline - time.monotonic(), 0)
        try:
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self._executor.shut:
            raise EngineLost("the engine was closed")
        return any([task.result() for task in done])

    def _steps(self, output_index: int) -> Iterator[StepOutput | Hold | RequestError]:
        count = 0
        passes = self._passes(output_index)
        for index, item in enumerate(passes):
            if not isinstance(item, Pass):
                yield item
                continue
            finish: Finish | None = None
            record = PassRecord(index, (1,) * item.drafted, item.accepted, len(item.ids), item.prefill)
            for kept, id_ in enumerate(item.ids, start=1):
                finish = self._ends(id_, count + kept)
                if finish:
                    record = record.cut_to(kept)
                    break
            count += record.emitted
            if not finish and index == len(passes) - 1:
                finish = Finish(FinishReason.LENGTH)
            ids, first = item.ids[: record.emitted], output_index == count - record.emitted == 0
            logprobs = self._logprobs(ids, self._request.logprobs)
            prompt = self._prompt_logprobs() if first else ()
            yield StepOutput(self._request.request_id, output_index, ids, (record,), finish, logprobs, prompt)
            if finish:
                return

    def _logprobs(self, ids: Sequence[int], best: int | None) -> tuple[TokenLogprobs, ...]:
        return () if best is None else tuple(logprobs_of(id_, best) for id_ in ids)

    def _prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        unpredicted, *others = self._request.prompt
        if (best := self._request.prompt_logprobs) is None:
            return ()
        return (TokenLogprobs(TokenLogprob(unpredicted, None, None)), *self._logprobs(others, best))

    def _passes(self, output_index: int) -> list[Pass | Hold | RequestError]:
        script = (self._executor.script, *self._executor.others)[output_index]
        if self._request.max_draft_tokens:
            return list(script)
        plain: list[Pass | Hold | RequestError] = []
        for item in script:
            if isinstance(item, Pass):
                plain += [Pass((id_,), prefill=item.prefill) for id_ in item.ids]
            else:
                plain.append(item)
        return plain

    def _ends(self, id_: int, count: int) -> Finish | None:
        if id_ in self._request.eos_ids:
            return Finish(FinishReason.EOS, id_)
        if id_ in self._request.stop_ids:
            return Finish(FinishReason.STOP, id_)
        return Finish(FinishReason.LENGTH) if count == self._request.max_tokens else None


def logprobs_of(id_: int, best: int) -> TokenLogprobs:
    """What the fake tells of a token: it is the second best, and its log-probability tells it from others."""
    top = tuple(TokenLogprob(rank, -rank / 8, rank) for rank in range(1, best + 1))
    return TokenLogprobs(TokenLogprob(id_, -id_ / 64, 2), top)


def ids_of(text: str) -> tuple[int, ...]:
    """Ids of a text in the tiny tokenizer."""
    return tuple(tiny_tokenizer().backend_tokenizer.encode(text, add_special_tokens=False).ids)


def script_of(text: str, *sizes: int) -> list[Pass]:
    """The text as a prefill token and then passes of these sizes, all but the last token of each accepted."""
    ids = ids_of(text)
    script, at = [Pass(ids[:1], prefill=True)], 1
    for size in sizes:
        part = ids[at : at + size]
        script.append(Pass(part, drafted=max(size, 1), accepted=len(part) - 1))
        at += size
    assert at == len(ids), f"the sizes cover {at} of {len(ids)} tokens"
    return script


@dataclass(frozen=True)
class Serving:
    """A running server of a test."""

    address: str
    server: Server
    channel: grpc.aio.Channel


@contextlib.asynccontextmanager
async def serving(
    executor: FakeExecutor,
    options: ServeOptions | None = None,
    sampling: SamplingParams | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    observer: Observer = NOBODY,
) -> AsyncIterator[Serving]:
    """A real server on a free loopback port, and a channel to it."""
    options = options or ServeOptions(port=0)
    server = Server(options, options.message_bytes(LIMITS.max_context_tokens), observer)
    defaults = GenerationDefaults(frozenset({EOS}), sampling or SamplingParams(), "test")
    model = ServedModel(executor.info(), defaults, options.default_speculation == "on")
    address = await server.bind()
    try:
        await server.open(model, executor, Tokenizer(tokenizer or tiny_tokenizer()))
        follow = asyncio.create_task(server.follow(executor))
        async with grpc.aio.insecure_channel(address) as channel:
            yield Serving(address, server, channel)
        follow.cancel()
        await asyncio.gather(follow, return_exceptions=True)
    finally:
        await executor.aclose()
        await server.stop()


def engine_folder(directory: Path, method: Method = Method.NGRAM) -> Path:
    """A folder that a server accepts as an engine, without weights."""
    tiny_tokenizer().save_pretrained(directory / generation.TOKENIZER)
    generation.write(GenerationDefaults(frozenset({EOS}), SamplingParams(), "test"), directory)
    files = [path for path in directory.rglob("*") if path.is_file()]
    manifest.write(
        manifest.Manifest(
            model="tiny",
            backend="embedded",
            runner="eager",
            architecture="LlamaForCausalLM",
            dtype="float32",
            quantization="none",
            max_context_tokens=LIMITS.max_context_tokens,
            vocabulary_size=LIMITS.vocabulary_size,
            speculative=SpeculativeConfig(method),
            artifacts={str(path.relative_to(directory)): manifest.hash_file(path) for path in files},
            tokenizer_sha256="0" * 64,
            target_sha256="0" * 64,
        ),
        directory,
    )
    return directory
