"""Two thousand streams at once on one front-end: each gets its own tokens, all and in order, in bounded memory."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from scripts.bench.frontends.ours import ScriptedExecutor
from scripts.bench.frontends.scripted import Gate
from tests.live.many_streams import FIRST
from tests.models import tiny_tokenizer
from trtspec.generation import GenerationDefaults
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.server import Server
from trtspec.service.text import Tokenizer
from trtspec.types import (
    Finish,
    FinishReason,
    PassRecord,
    Request,
    RequestEvent,
    SamplingParams,
    Started,
    StepOutput,
)

STREAMS = 2000
TOKENS = 30
MOST_BYTES_A_STREAM = 100_000
"""Of the server's memory, the calls of gRPC included; twice what was measured."""


class Counting(ScriptedExecutor):
    """Each request gets the ids that follow its prompt, and none begins before all are there."""

    def __init__(self) -> None:
        super().__init__((), STREAMS)
        self.live = self.most = 0
        self.gate = Gate(STREAMS)

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        async with self.gate.passed():
            self.live += 1
            self.most = max(self.live, self.most)
            try:
                yield Started(request.request_id)
                for number in range(TOKENS):
                    ids = (request.prompt[-1] + 1 + number,)
                    finish = Finish(FinishReason.LENGTH) if number == TOKENS - 1 else None
                    yield StepOutput(request.request_id, 0, ids, (PassRecord(number, prefill=number == 0),), finish)
            finally:
                self.live -= 1


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
async def test_two_thousand_streams_lose_and_mix_nothing_in_bounded_memory() -> None:
    executor, server = Counting(), Server(ServeOptions(port=0), 1 << 20)
    address = await server.bind()
    model = ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "test"))
    await server.open(model, executor, Tokenizer(tiny_tokenizer()))
    before = most = resident()
    port = address.rpartition(":")[2]
    command = [sys.executable, "-m", "tests.live.many_streams", port, str(STREAMS), str(TOKENS)]
    client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    talking = asyncio.create_task(client.communicate())
    while not talking.done():
        most = max(most, resident())
        await asyncio.wait((talking,), timeout=0.05)
    out, _ = talking.result()
    await server.stop()
    each = (most - before) / STREAMS
    print(f"{each:.0f} bytes for each of {STREAMS} streams, {(most - before) / 1e6:.0f} MB in all; ids from {FIRST}")
    assert int(out) == STREAMS == executor.most and executor.live == 0
    assert each < MOST_BYTES_A_STREAM
