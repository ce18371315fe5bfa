"""Bytes that are no message: gRPC itself would answer UNKNOWN, and write a traceback to the log for each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError

from trtspec.errors import InvalidField
from trtspec.service.status import to_status

Behaviour = Callable[[Any, Any], Awaitable[Any]]


def careful(server: grpc.aio.Server) -> grpc.aio.Server:
    """Stands for the server where the methods of a service are added to it, and makes each refuse such bytes.

    Methods that get a stream of messages are left as they are.
    """
    return cast(grpc.aio.Server, _Careful(server))


class _Careful:
    """What generated code calls of a server."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """The same methods as below, which go first; without those there is nothing to add."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        careful_ones = {name: _careful(handler) for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, careful_ones)


def _careful(handler: Any) -> Any:
    if handler.request_streaming:
        return handler
    parse: Callable[[bytes], Any] = handler.request_deserializer

    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return None

    kind = "unary_stream" if handler.response_streaming else "unary_unary"
    return handler._replace(request_deserializer=parsed, **{kind: _refusing(getattr(handler, kind))})


def _refusing(behaviour: Behaviour) -> Behaviour:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request is None:
            await _refuse(context)
        return await behaviour(request, context)

    return call


async def _refuse(context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    status = to_status(InvalidField("the request", "malformed", "a serialized message of this method"))
    await context.abort(status.code, status.details, tuple(status.trailing_metadata or ()))
