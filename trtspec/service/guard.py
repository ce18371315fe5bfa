"""What stands before every service of a port: nobody is answered who may not call, and only whole messages are.

It works for any service that a server has, so that none can be forgotten. A message is looked into once its sender is
known to be let in.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from trtspec.errors import InvalidField, RequestError
from trtspec.service.callers import Access, Context
from trtspec.service.status import to_status

OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})
"""For probes, which hold no tokens."""

T = TypeVar("T")
Parse = Callable[[bytes], Any]
Handler = Any
"""A method's handler; gRPC's published types leave its parts out."""


class Guard(grpc.aio.ServerInterceptor):
    """Puts itself between a call and its method."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler with a guard before it; None where there is no such method."""
        method = str(handler_call_details.method)
        if method not in self._guarded:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._guarded[method] = self._before(handler, method.split("/")[1] in OPEN_SERVICES)
        return self._guarded[method]

    def _before(self, handler: Handler, is_open: bool) -> Handler:
        parse: Parse = handler.request_deserializer or bytes

        async def admit(context: Context) -> None:
            try:
                if not is_open:
                    self._access.caller(context)
            except RequestError as error:
                await _refuse(context, error)

        shape = f"{'stream' if handler.request_streaming else 'unary'}_{_shape(handler.response_streaming)}"
        behaviour = getattr(handler, shape)
        make = getattr(grpc, f"{shape}_rpc_method_handler")
        wrap = _streaming if inspect.isasyncgenfunction(behaviour) else _single
        take = _stream_parser(parse) if handler.request_streaming else _parser(parse)
        # gRPC's own parsing would answer UNKNOWN and log a traceback for each broken message.
        return make(wrap(behaviour, take, admit), None, handler.response_serializer)


def _shape(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _single(behaviour: Any, take: Any, admit: Callable[[Context], Awaitable[None]]) -> Any:
    async def guarded(request: Any, context: Context) -> Any:
        await admit(context)
        return await behaviour(await take(request, context), context)

    return guarded


def _streaming(behaviour: Any, take: Any, admit: Callable[[Context], Awaitable[None]]) -> Any:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        await admit(context)
        async for response in behaviour(await take(request, context), context):
            yield response

    return guarded


def _parser(parse: Parse) -> Any:
    async def take(data: bytes, context: Context) -> Any:
        try:
            return parse(data)
        except DecodeError:
            await _refuse(context, InvalidField("request", f"{len(data)} bytes that are no message", "a whole message"))

    return take


def _stream_parser(parse: Parse) -> Any:
    one = _parser(parse)

    async def take(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async def parsed() -> AsyncIterator[Any]:
            async for data in requests:
                yield await one(data, context)

        return parsed()

    return take


async def _refuse(context: Context, error: RequestError) -> NoReturn:
    status = to_status(error)
    await context.abort(status.code, status.details, status.trailing_metadata)
