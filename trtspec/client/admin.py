"""The connection of an operator to a server's admin port."""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

import grpc

from trtspec.client import convert
from trtspec.client.client import CHANNEL_OPTIONS
from trtspec.client.fields import message
from trtspec.client.security import File, Security
from trtspec.v1 import admin_pb2 as pb
from trtspec.v1 import admin_pb2_grpc as rpc

R = TypeVar("R")


class AdminClient:
    """A connection to one server; use it as an async context manager. Every failure is `RequestFailed`.

    The arguments are those of `Client`.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: bool = False,
        root_certificates: File | None = None,
        certificate: File | None = None,
        key: File | None = None,
        token: str | None = None,
        allow_insecure: bool = False,
    ) -> None:
        security = Security(tls, root_certificates, certificate, key, token, allow_insecure)
        self._channel = security.channel(address, CHANNEL_OPTIONS)
        self._stub = rpc.AdminStub(self._channel)
        self._metadata = security.metadata

    async def __aenter__(self) -> AdminClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(None)

    async def stats(self) -> pb.GetStatsResponse:
        """State of server and engine."""
        return await _answer(self._stub.GetStats(pb.GetStatsRequest(), metadata=self._metadata))

    async def list_requests(self) -> list[pb.LiveRequest]:
        """All live requests, oldest first."""
        found: list[pb.LiveRequest] = []
        token = ""
        while True:
            request = pb.ListRequestsRequest(page_token=token)
            page = await _answer(self._stub.ListRequests(request, metadata=self._metadata))
            found += page.requests
            if not (token := page.next_page_token):
                return found

    async def cancel(self, request_id: str) -> None:
        """End a request."""
        request = message(pb.CancelRequestRequest, request_id=request_id)
        await _answer(self._stub.CancelRequest(request, metadata=self._metadata))

    async def set_speculation(
        self, *, max_draft_tokens: int | None = None, off: bool | None = None, restore: bool | None = None
    ) -> pb.SpeculationSetting:
        """Limit drafts, switch them off, or end that; gives what is in force. Exactly one of the three."""
        values = {"max_draft_tokens": max_draft_tokens, "off": off, "restore": restore}
        if len([value for value in values.values() if value is not None]) != 1:
            raise TypeError(f"set_speculation takes exactly one of {', '.join(values)}")
        request = message(pb.SetSpeculationRequest, **values)
        response: pb.SetSpeculationResponse = await _answer(self._stub.SetSpeculation(request, metadata=self._metadata))
        return response.setting

    async def drain(self) -> int:
        """Begin to end the server; gives how many requests live."""
        response: pb.DrainResponse = await _answer(self._stub.Drain(pb.DrainRequest(), metadata=self._metadata))
        return response.live_request_count


async def _answer(call: Awaitable[R]) -> R:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise convert.failure(error) from None
