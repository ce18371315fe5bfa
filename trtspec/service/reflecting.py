"""Where grpcurl may ask for the interface, and who may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from trtspec.errors import RequestError
from trtspec.loopback import is_loopback
from trtspec.service.callers import Access
from trtspec.service.options import ServeOptions
from trtspec.service.status import to_status


def place(options: ServeOptions) -> str:
    """The port of reflection: `main`, `admin` or `off`."""
    security = options.security
    if security.reflection != "auto":
        return security.reflection
    if is_loopback(options.host):
        return "main"
    return "admin" if security.admin_port >= 0 else "off"


def add_reflection(server: grpc.aio.Server, names: Sequence[str], access: Access) -> None:
    """Tell of these services, to those who are let in."""
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server  # untyped, as what it takes
    add(_Guarded((*names, reflection.SERVICE_NAME), access), server)


class _Guarded:
    def __init__(self, names: Sequence[str], access: Access) -> None:
        self._inner: Any = reflection.aio.ReflectionServicer(names)
        self._access = access

    async def ServerReflectionInfo(
        self,
        request_iterator: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        try:
            self._access.caller(context)
        except RequestError as error:
            status = to_status(error)
            await context.abort(status.code, status.details, status.trailing_metadata)
        async for response in self._inner.ServerReflectionInfo(request_iterator, context):
            yield response
