"""Running requests on an opened engine folder and collecting what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtspec.decoding.stats import SpeculationStats
from trtspec.executors.base import Executor
from trtspec.types import Finish, PassRecord, Request, StepOutput


@dataclass
class Collected:
    ids: list[int] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats.of(self.passes)


async def collect(executor: Executor, request: Request) -> Collected:
    """Run one request for one output to its end."""
    (output,) = await collect_outputs(executor, request)
    return output


async def collect_outputs(executor: Executor, request: Request) -> list[Collected]:
    """Run one request to its end; returns its n outputs."""
    results = [Collected() for _ in range(request.n)]
    async for event in executor.generate(request):
        if isinstance(event, StepOutput):
            result = results[event.output_index]
            assert result.finish is None, "an output after its end"
            result.ids += event.token_ids
            result.passes += event.passes
            result.finish = event.finish
    for result in results:
        result.stats.check()
    return results


async def one_by_one(executor: Executor, requests: Sequence[Request]) -> list[Collected]:
    return [await collect(executor, request) for request in requests]


async def staggered(executor: Executor, requests: Sequence[Request], every: int = 3) -> list[Collected]:
    """Each request joins once the one before it has had `every` outputs, so that all overlap and none starts alike."""
    gates = [asyncio.Event() for _ in range(len(requests) + 1)]
    gates[0].set()

    async def join(index: int, request: Request) -> Collected:
        await gates[index].wait()
        result = Collected()
        async for event in executor.generate(request):
            if isinstance(event, StepOutput):
                result.ids += event.token_ids
                result.passes += event.passes
                result.finish = event.finish
                if len(result.passes) >= every or event.finish:
                    gates[index + 1].set()
        return result

    return list(await asyncio.gather(*(join(index, request) for index, request in enumerate(requests))))
