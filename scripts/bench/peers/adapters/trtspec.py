"""Ours through the `Executor`, its engine in a worker process as the server has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import count
from pathlib import Path

from scripts.bench.peers.jobs import Generate, Job, Work
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import Request, StepOutput

One = Callable[[Sequence[int], Work], Awaitable[int]]
"""Generates for one prompt."""


class Front:
    """Turns work into requests of an executor."""

    def __init__(self, executor: Executor, eos_ids: Sequence[int], *, speculation: bool) -> None:
        self._executor = executor
        self._eos_ids = frozenset(eos_ids)
        self._drafted = executor.info().default_draft_tokens if speculation else 0
        self._serial = count()

    async def one(self, prompt: Sequence[int], work: Work) -> int:
        """Run one prompt; returns how many tokens came."""
        request = Request(
            request_id=str(next(self._serial)),
            prompt=tuple(prompt),
            max_tokens=work.max_new_tokens,
            eos_ids=frozenset() if work.ignore_eos else self._eos_ids,
            max_draft_tokens=self._drafted,
        )
        async with aclosing(self._executor.generate(request)) as events:
            return sum([len(event.token_ids) async for event in events if isinstance(event, StepOutput)])


async def several(one: One, work: Work, concurrency: int) -> int:
    """All prompts, so many at a time; the tokens of all."""
    free = asyncio.Semaphore(concurrency)

    async def admitted(prompt: Sequence[int]) -> int:
        async with free:
            return await one(prompt, work)

    return sum(await asyncio.gather(*map(admitted, work.prompts)))


@contextmanager
def opened(job: Job) -> Iterator[Generate]:
    loop = asyncio.new_event_loop()
    executor = loop.run_until_complete(open_executor(Path(job.model), EngineOptions(threads=job.threads)))
    try:
        front = Front(executor, job.eos_ids, speculation=job.speculates)
        yield lambda work: loop.run_until_complete(several(front.one, work, job.concurrency))
    finally:
        loop.run_until_complete(executor.aclose())
        loop.close()
