"""What one server is doing, gathered in the process that holds its engine: behind /metrics and the status page."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from trtspec import __version__
from trtspec.executors.base import Executor
from trtspec.service.model import ServedModel
from trtspec.service.operating import Operation
from trtspec.service.options import ServeOptions
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry.engine_watch import EngineWatch, kv_usage
from trtspec.service.telemetry.exposition import CONFIG_ID_DIGITS, Scrape
from trtspec.service.telemetry.history import SAMPLE_SECONDS, SAMPLED, History, Sample
from trtspec.service.telemetry.totals import Totals
from trtspec.types import Health

NOT_OPEN, DRAINING = "starting", "draining"
"""States beside those of `Health`."""
CertificateEnd = Callable[[], float | None]
"""When the server's certificate ends, Unix time; None without one."""


@dataclass(frozen=True, slots=True)
class Open:
    """What there is once the engine is open."""

    model: ServedModel
    watch: EngineWatch
    operation: Operation

    @property
    def state(self) -> str:
        """Health in a word."""
        return DRAINING if self.operation.signals.stop.done() else self.watch.health.value


class Overview:
    """Begins before the engine is open and ends after it is closed."""

    def __init__(self, options: ServeOptions, certificate_end: CertificateEnd = lambda: None) -> None:
        self.options = options
        self.totals = Totals()
        self.history = History()
        self.began = time.monotonic()
        self.opened: Open | None = None
        self.address = ""
        """Of the status port; empty without one."""
        self._certificate_end = certificate_end

    @property
    def state(self) -> str:
        return self.opened.state if self.opened else NOT_OPEN

    @property
    def serving(self) -> bool:
        return self.state == Health.SERVING.value

    @contextlib.asynccontextmanager
    async def following(self, executor: Executor, operation: Operation) -> AsyncIterator[None]:
        """Take samples of an open engine while the context lasts."""
        watch = EngineWatch(executor)
        self.opened = Open(operation.model, watch, operation)
        async with watch.counting():
            task = asyncio.create_task(self._sample(watch))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def scrape(self) -> Scrape:
        """All metrics as they are now."""
        opened = self.opened
        if opened is None:
            return Scrape(None, {}, {}, {}, {})
        with contextlib.suppress(Exception):  # without the engine its last reading must do
            await opened.watch.read()
        info = opened.model.info
        return Scrape(
            (info.model, info.engine_id[:CONFIG_ID_DIGITS]),
            self.totals.read(),
            self._gauges(opened),
            {
                names.ENGINE_PASSES: opened.watch.passes,
                names.PREEMPTIONS: opened.watch.preemptions,
                names.RESTARTS: opened.watch.restarts,
            },
            self.history.stretch().counted,
            self.options.telemetry.metrics_compatibility,
        )

    def _gauges(self, opened: Open) -> Mapping[names.Family, tuple[tuple[str, ...], float]]:
        info, engine = opened.model.info, opened.watch.reading
        values: dict[names.Family, float | None] = {
            names.RUNNING: engine.running,
            names.WAITING: engine.waiting,
            names.KV_USAGE: kv_usage(engine),
            names.MAX_BATCH: info.limits.max_batch_size,
            names.DEPTH: opened.model.default_draft_tokens,
            names.UP: int(opened.state == Health.SERVING.value),
            names.FRONTENDS: self.totals.sources,
            names.CERTIFICATE: self._certificate_end(),
        }
        gauges: dict[names.Family, tuple[tuple[str, ...], float]] = {
            family: ((), value) for family, value in values.items() if value is not None
        }
        labels = (info.method.value, info.backend, info.architecture, info.dtype, info.quantization, __version__)
        return {**gauges, names.INFO: (labels, 1)}

    async def _sample(self, watch: EngineWatch) -> None:
        while True:
            with contextlib.suppress(Exception):  # an engine that is being restarted; the next sample may do
                await watch.read()
            self.history.add(Sample(time.monotonic(), self.totals.read(SAMPLED), watch.reading))
            await asyncio.sleep(SAMPLE_SECONDS)
