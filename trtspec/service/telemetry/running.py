"""What is told in which process: counting where clients are answered, totals and the status port where the engine is.

With one process both are here, and totals read its counters; with front-ends each tells its own over its channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from trtspec.executors.base import Executor
from trtspec.executors.hub_messages import Counted
from trtspec.service.exposure import check_exposure
from trtspec.service.observing import NOBODY, Observer, Several
from trtspec.service.operating import Operate, Operation
from trtspec.service.options import ServeOptions
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry.exposition import CONFIG_ID_DIGITS
from trtspec.service.telemetry.line_writer import LineWriter
from trtspec.service.telemetry.metrics import Metrics
from trtspec.service.telemetry.overview import CertificateEnd, Overview
from trtspec.service.telemetry.registry import Counter, Registry
from trtspec.service.telemetry.request_log import RequestLog
from trtspec.service.telemetry.small_http import SmallServer
from trtspec.service.telemetry.status_page import routes
from trtspec.service.telemetry.totals import Totals
from trtspec.service.telemetry.traces import Traces, open_traces

_OPEN = (
    "the status port has no protection of its own; listen on 127.0.0.1 and put a proxy before it, or say "
    "--allow-insecure where the network protects it"
)
TELL_SECONDS = 1.0
"""Front-ends tell their totals this often, and at their end."""


class Telemetry:
    """Of one process that answers clients."""

    def __init__(self, registry: Registry, observers: list[Observer], traces: Traces | None) -> None:
        self.registry = registry
        self.observer: Observer = (
            NOBODY if not observers else observers[0] if len(observers) == 1 else Several(observers)
        )
        self._traces = traces

    def around(self, operate: Operate) -> Operate:
        """Learn what is served as soon as it is open."""

        @contextlib.asynccontextmanager
        async def told(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
            if self._traces:
                info = operation.model.info
                self._traces.model, self._traces.config_id = info.model, info.engine_id[:CONFIG_ID_DIGITS]
            async with operate(executor, operation) as engine:
                yield engine

        return told


@dataclass(frozen=True, slots=True)
class Oversight:
    """Of the process that holds the engine."""

    overview: Overview

    @property
    def totals(self) -> Totals:
        return self.overview.totals

    def around(self, operate: Operate) -> Operate:
        """Follow the engine as clients get it."""

        @contextlib.asynccontextmanager
        async def followed(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
            async with operate(executor, operation) as engine, self.overview.following(engine, operation):
                yield engine

        return followed if has_status(self.overview.options) else operate

    @contextlib.asynccontextmanager
    async def reading(self, options: ServeOptions) -> AsyncIterator[Telemetry]:
        """Telemetry of this very process, whose counters are read."""
        async with counting(options) as telemetry:
            with self.totals.joined(telemetry.registry.snapshot):
                yield telemetry


def has_status(options: ServeOptions) -> bool:
    """Somebody may ask for metrics."""
    return options.telemetry.status_port >= 0


@contextlib.asynccontextmanager
async def overseen(options: ServeOptions, certificate_end: CertificateEnd = lambda: None) -> AsyncIterator[Oversight]:
    """The status port, where there is to be one, from before the engine is opened. Raises `CannotListen`."""
    overview = Overview(options, certificate_end)
    async with contextlib.AsyncExitStack() as stack:
        if has_status(options):
            host, port = options.telemetry.status_host, options.telemetry.status_port
            check_exposure(host, False, options.security, "--status-host", _OPEN)
            server = SmallServer(host, routes(overview))
            overview.address = await stack.enter_async_context(server.listening(host, port, "--status-port"))
            # Not a log line, and not on standard output, whose first line says that requests are answered.
            print(f"status page: http://{overview.address}/", file=sys.stderr, flush=True)
        yield Oversight(overview)


@contextlib.asynccontextmanager
async def counting(options: ServeOptions) -> AsyncIterator[Telemetry]:
    """Observers of requests, as the options ask for them. Raises `ConfigError` and `MissingDependency`."""
    asked, registry = options.telemetry, Registry()
    observers: list[Observer] = [Metrics(registry)] if has_status(options) else []
    traces: Traces | None = None
    dropped = partial(_add_later, asyncio.get_running_loop(), registry.counter(names.LOG_DROPPED))
    async with contextlib.AsyncExitStack() as stack:
        if asked.request_log:
            writer = LineWriter(asked.request_log, "--request-log", dropped)
            stack.push_async_callback(asyncio.to_thread, writer.close)
            observers.append(RequestLog(writer, asked.log_prompts))
        if asked.otlp_endpoint:
            traces = open_traces(asked.otlp_endpoint, options.host, options.port)
            stack.push_async_callback(asyncio.to_thread, traces.close)
            observers.append(traces)
        yield Telemetry(registry, observers, traces)


@contextlib.asynccontextmanager
async def telling(options: ServeOptions, send: Callable[[Counted], None]) -> AsyncIterator[Telemetry]:
    """Telemetry of a front-end, which tells its totals."""
    async with counting(options) as telemetry:
        yield _Telling(telemetry, send) if has_status(options) else telemetry


class _Telling(Telemetry):
    """Tells while the engine is there, and at the end what came last."""

    def __init__(self, inner: Telemetry, send: Callable[[Counted], None]) -> None:
        self.registry, self.observer, self._inner, self._send = inner.registry, inner.observer, inner, send

    def around(self, operate: Operate) -> Operate:
        @contextlib.asynccontextmanager
        async def told(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
            task = asyncio.create_task(self._tell())
            try:
                async with self._inner.around(operate)(executor, operation) as engine:
                    yield engine
            finally:
                task.cancel()
                self._send(Counted(self.registry.snapshot()))

        return told

    async def _tell(self) -> None:
        while True:
            self._send(Counted(self.registry.snapshot()))
            await asyncio.sleep(TELL_SECONDS)


def _add_later(loop: asyncio.AbstractEventLoop, counter: Counter, amount: int) -> None:
    """Count from any thread; after the loop's end nobody asks any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(counter.add, amount)
