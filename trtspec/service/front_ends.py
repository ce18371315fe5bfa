"""A server whose clients are answered by several processes: one port, one engine, one main process that is no server.

The main process holds the engine's executor and shares it through a hub. It keeps the front-ends running and passes
signals on. A request is lost with its front-end, and no other request is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from trtspec import manifest
from trtspec.config import EngineOptions
from trtspec.executors import OpenEngine, open_executor
from trtspec.executors.base import Executor
from trtspec.executors.hub import Hub
from trtspec.service.address import shared_port, shown
from trtspec.service.front_end import FrontEnd, Order
from trtspec.service.model import Announce, ServedModel, served_model
from trtspec.service.operating import Operation, operated
from trtspec.service.options import ServeOptions
from trtspec.service.signals import StopSignals
from trtspec.service.waiting import unless
from trtspec.types import Health

_STOP_SECONDS = 10.0
"""Time for a front-end to stop beyond what its requests may take; one that needs more hangs and is killed."""


async def serve(
    directory: Path,
    options: ServeOptions,
    engine_options: EngineOptions,
    announce: Announce,
    open_engine: OpenEngine = open_executor,
) -> bool:
    """Serve an engine folder with `options.frontends` processes until SIGTERM or SIGINT.

    False if the engine or a front-end failed for good.
    """
    manifest.read(directory)  # a plain mistake is told before a process is started
    signals = StopSignals()
    with signals.handled(), shared_port(options.host, options.port) as port:
        options = replace(options, port=port)
        fronts = [FrontEnd(Order(number, directory, options)) for number in range(1, options.frontends + 1)]
        try:
            # Before the engine: a front-end that cannot listen costs no engine load.
            if not await unless(signals.stop, _start(fronts)):
                return True
            executor = await unless(signals.stop, open_engine(directory, engine_options))
            if executor is None:
                return True
            try:
                model = served_model(executor.info(), directory, options)
                async with (
                    operated(executor, Operation(model, options, signals)) as engine,
                    _running(_announce(fronts, announce, shown(options.host, port), model)),
                ):
                    hub = Hub(engine, options.max_requests(model.info.limits.max_batch_size))
                    return await _attend(fronts, hub, engine, signals, options.time.drain_seconds)
            finally:
                await executor.aclose()
        finally:
            await asyncio.gather(*(front.aclose() for front in fronts))


async def _start(fronts: Sequence[FrontEnd]) -> bool:
    """Start all; raises the first error once each has started or failed."""
    results = await asyncio.gather(*(front.start() for front in fronts), return_exceptions=True)
    for error in results:
        if error is not None:
            raise error
    return True


async def _announce(fronts: Sequence[FrontEnd], announce: Announce, address: str, model: ServedModel) -> None:
    for front in fronts:
        await front.answering.wait()
    announce(address, model)


async def _attend(
    fronts: Sequence[FrontEnd], hub: Hub, executor: Executor, signals: StopSignals, drain_seconds: float
) -> bool:
    """Keep the front-ends until a signal, or until there is nothing to keep them for; then let them drain."""
    async with _running(*(front.keep(hub) for front in fronts)) as kept, _running(_failure(executor)) as failed:
        over = asyncio.wait((*kept, *failed), return_when=asyncio.FIRST_COMPLETED)
        stopped = await unless(signals.stop, over) is None
        _stop(fronts)
        if await unless(signals.hurry, asyncio.wait(kept, timeout=drain_seconds + _STOP_SECONDS)) is None:
            _stop(fronts)
            await asyncio.wait(kept, timeout=_STOP_SECONDS)
        await asyncio.gather(*(task for task in kept if task.done()))  # a mistake of ours is not kept quiet
        return stopped


def _stop(fronts: Sequence[FrontEnd]) -> None:
    for front in fronts:
        front.stop()


async def _failure(executor: Executor) -> None:
    """Return when the engine has failed for good."""
    health = executor.health()
    while health is not Health.FAILED:
        health = await executor.wait_for_change(health)


@asynccontextmanager
async def _running(*work: Coroutine[object, object, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run work beside what is inside, and cancel what is left of it at the end."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
