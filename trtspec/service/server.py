"""The life of a gRPC server: bind, load, serve, drain.

It owns the port, health and reflection. It does not know what a request is, nor whether other processes share the port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trtspec import manifest
from trtspec.config import EngineOptions
from trtspec.executors import OpenEngine, open_executor
from trtspec.executors.base import Executor
from trtspec.service.admission import Admission
from trtspec.service.callers import ANYONE, Access
from trtspec.service.listening import listen, new_server
from trtspec.service.model import Announce, ServedModel, served_model
from trtspec.service.observing import NOBODY, Observer
from trtspec.service.operating import Operate, Operation, operated
from trtspec.service.options import ServeOptions
from trtspec.service.servicer import Backend, InferenceServicer
from trtspec.service.signals import StopSignals
from trtspec.service.text import Tokenizer
from trtspec.service.waiting import give, new_cue, unless
from trtspec.types import Health
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
_STOP_SECONDS = 1.0
"""Time for requests that the server ends to end, and for last messages to leave."""


class Healths(health.aio.HealthServicer):
    """Health of the services. Ends its watches itself: one that the closing port cancels leaves a traceback behind."""

    def __init__(self) -> None:
        super().__init__()
        self._over = new_cue()

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        """Stream changes until the client leaves or the server stops."""
        await unless(self._over, super().Watch(request, context))

    def end_watches(self) -> None:
        """Close every watch, and at once those that come later."""
        give(self._over)


class Server:
    """One gRPC server. Bind first, so that a taken port costs no engine load; then open, then drain and stop."""

    def __init__(
        self, options: ServeOptions, message_bytes: int, observer: Observer = NOBODY, access: Access = ANYONE
    ) -> None:
        self._options = options
        self._message_bytes = message_bytes
        self._servicer = InferenceServicer(observer, access)
        self._health = Healths()
        self._admission: Admission | None = None
        self._draining = False
        self._server = new_server(options, message_bytes)
        rpc.add_InferenceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def bind(self) -> str:
        """Listen, NOT_SERVING; give the address with the real port."""
        await self._set_health(False)
        address = listen(self._server, self._options.host, self._options.port)
        await self._server.start()
        return address

    async def open(self, model: ServedModel, executor: Executor, tokenizer: Tokenizer) -> None:
        """Answer requests from now on."""
        self._admission = Admission(self._options.max_requests(model.info.limits.max_batch_size))
        queued = self._options.admission.max_queued_requests
        self._servicer.open(Backend(model, executor, tokenizer, self._admission, queued, self._message_bytes))
        await self._set_health(executor.health() is Health.SERVING)

    async def follow(self, executor: Executor) -> bool:
        """Report the engine's health, and return True when it has failed for good."""
        state = executor.health()
        while state is not Health.FAILED:
            await self._set_health(state is Health.SERVING)
            state = await executor.wait_for_change(state)
        await self._set_health(False)
        return True

    async def drain(self) -> None:
        """Refuse new requests and wait for the live ones, at most the drain time."""
        self._draining = True
        await self._set_health(False)
        if self._admission is not None:
            self._admission.drain()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._admission.wait_idle(), self._options.time.drain_seconds)

    async def end_requests(self) -> None:
        """End what is left of the live requests; each gets its text so far and `finished` with CANCELLED."""
        if self._admission is not None:
            self._admission.cancel_all()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._admission.wait_idle(), _STOP_SECONDS)

    async def stop(self) -> None:
        """Close the port; calls that still run are cancelled after a moment."""
        self._health.end_watches()
        await self._server.stop(_STOP_SECONDS)
        await asyncio.to_thread(self._servicer.close)

    async def _set_health(self, serving: bool) -> None:
        answer = health_pb2.HealthCheckResponse
        value = answer.SERVING if serving and not self._draining else answer.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, value)


async def serve(
    directory: Path,
    options: ServeOptions,
    engine_options: EngineOptions,
    announce: Announce,
    open_engine: OpenEngine = open_executor,
) -> bool:
    """Serve an engine folder from this process until SIGTERM or SIGINT. False if the engine failed for good."""
    signals = StopSignals()
    # Before the load: a signal in these seconds must end the process in order, too.
    with signals.handled():
        opening = partial(open_engine, directory, engine_options)
        return await serve_until(signals, directory, options, opening, announce, operated)


async def serve_until(
    signals: StopSignals,
    directory: Path,
    options: ServeOptions,
    open_engine: Callable[[], Coroutine[object, object, Executor]],
    announce: Announce,
    operate: Operate,
) -> bool:
    """Serve an engine until a signal. False if it failed for good."""
    server = Server(options, options.message_bytes(manifest.read(directory).max_context_tokens))
    try:
        address = await server.bind()
        tokenizer = await asyncio.to_thread(Tokenizer.load, directory)
        executor = await unless(signals.stop, open_engine())
        if executor is None:
            return True
        try:
            model = served_model(executor.info(), directory, options)
            async with operate(executor, Operation(model, options, signals)) as engine:
                await server.open(model, engine, tokenizer)
                announce(address, model)
                if await unless(signals.stop, server.follow(engine)):
                    return False
                await unless(signals.hurry, server.drain())
                await server.end_requests()
                return True
        finally:
            await executor.aclose()
    finally:
        await server.stop()
