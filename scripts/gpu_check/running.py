"""Runs prompts on an engine, alone or several at a time, and keeps what came back."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.gpu_check.subject import Prompt
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import PassRecord, Request, SamplingParams, StepOutput

BATCH = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run."""

    prompts: int
    tokens: int
    measured_tokens: int


def extent_of(options: argparse.Namespace) -> Extent:
    if options.quick:
        return Extent(prompts=3, tokens=16, measured_tokens=8)
    return Extent(prompts=16, tokens=64, measured_tokens=128)


@dataclass(frozen=True, slots=True)
class Text:
    """What one request came to."""

    ids: list[int]
    passes: list[PassRecord]

    @property
    def accepted(self) -> int:
        return sum(item.accepted for item in self.passes)


@asynccontextmanager
async def opened(engine: Path, options: EngineOptions, *, in_process: bool) -> AsyncIterator[Executor]:
    executor = await open_executor(engine, replace(options, max_batch_size=BATCH), in_process=in_process)
    try:
        yield executor
    finally:
        await executor.aclose()


def requests(
    prompts: Sequence[Prompt], tokens: int, depth: int, sampling: SamplingParams | None = None
) -> list[Request]:
    """Greedy ones, or seeded ones where they sample."""
    plain = [Request(str(i), prompt, tokens, max_draft_tokens=depth) for i, prompt in enumerate(prompts)]
    return [replace(item, sampling=sampling, seed=40 + i) if sampling else item for i, item in enumerate(plain)]


async def run(executor: Executor, asked: Sequence[Request], concurrency: int) -> list[Text]:
    """All requests, so many at a time."""
    free = asyncio.Semaphore(concurrency)

    async def one(request: Request) -> Text:
        async with free, aclosing(executor.generate(request)) as events:
            outputs = [event async for event in events if isinstance(event, StepOutput)]
        return Text([i for item in outputs for i in item.token_ids], [p for item in outputs for p in item.passes])

    return list(await asyncio.gather(*map(one, asked)))
