"""The port of the Admin service: a server of its own, in the process that holds the engine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from trtspec.service.admin import AdminServicer
from trtspec.service.listening import listen, new_server
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.protection import NONE, Protection
from trtspec.service.reflecting import place
from trtspec.service.signals import StopSignals
from trtspec.service.watching import WatchedExecutor
from trtspec.v1 import admin_pb2 as pb
from trtspec.v1 import admin_pb2_grpc as rpc
from trtspec.v1 import inference_pb2

SERVICE = pb.DESCRIPTOR.services_by_name["Admin"].full_name
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
_MESSAGE_BYTES = 64 << 10
_REFLECTING = ("auto", "admin")
"""Settings of `--reflection` under which this port tells its interface."""
_STOP_SECONDS = 1.0
_log = logging.getLogger(__name__)


@asynccontextmanager
async def admin_port(
    executor: WatchedExecutor,
    model: ServedModel,
    options: ServeOptions,
    signals: StopSignals,
    protection: Protection = NONE,
) -> AsyncIterator[str]:
    """Answer operators while the context lasts, a drain included. Gives the address; raises `CannotListen`."""
    # No other process has a part in this port, however many answer clients.
    server, access = new_server(replace(options, frontends=1), _MESSAGE_BYTES, protection.admin), protection.admin
    rpc.add_AdminServicer_to_server(AdminServicer(executor, model, options, signals, access), server)
    healths = health.aio.HealthServicer()
    for name in ("", SERVICE):
        await healths.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    if options.security.reflection in _REFLECTING:
        # Calls of the main port's services find nobody here; what they look like can be asked for.
        others = (INFERENCE,) if place(options) == "admin" else ()
        reflection.enable_server_reflection((SERVICE, *others, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    security = options.security
    address = listen(server, security.admin_host, security.admin_port, protection.credentials(), "--admin-port")
    await server.start()
    _log.warning("the admin service listens on %s", address)
    try:
        yield address
    finally:
        await server.stop(_STOP_SECONDS)
