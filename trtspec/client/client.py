"""The connection to a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import grpc

from trtspec.client import convert
from trtspec.client.collect import Collector
from trtspec.client.events import Completion, Event
from trtspec.client.fields import Prompt, message, prompt_fields
from trtspec.client.request import Options, generate_request
from trtspec.client.security import File, Security
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # While a call is live, a server that stands still or a network that is gone is noticed after both together. Asking
    # every 30 s is seldom enough for servers of ours; see `least_ping_seconds` there.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # gRPC asks twice and no more until the client sends something, which it does only once.
    ("grpc.http2.max_pings_without_data", 0),
)


class Client:
    """A connection to one server; use it as an async context manager.

    With `token` every call shows it. `tls` encrypts; `root_certificates` and a `certificate` with its `key` are PEM
    files, and either means TLS, too.
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
        self._metadata = security.metadata
        self._stub = rpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(None)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[Event, None]:
        """Stream an answer. Leaving the loop early cancels the request once the iterator is closed.

        `timeout` is the deadline of the call in seconds; `time_budget` is the reliable way to end an answer in time.
        """
        return self._stream(generate_request(prompt, options), timeout)

    async def _stream(self, request: pb.GenerateRequest, timeout: float | None) -> AsyncGenerator[Event, None]:
        call = self._stub.Generate(request, timeout=timeout, metadata=self._metadata)
        try:
            async for response in call:
                if (event := convert.event(response)) is not None:
                    yield event
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        finally:
            call.cancel()

    async def complete(self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[Options]) -> Completion:
        """The whole answer of `generate`, which takes the same options."""
        collector = Collector()
        async for event in self.generate(prompt, timeout=timeout, **options):
            collector.take(event)
        return collector.completion()

    async def model_info(self, model: str = "") -> pb.GetModelInfoResponse:
        """What the server serves, as the proto says it."""
        request = message(pb.GetModelInfoRequest, model=model)
        try:
            response: pb.GetModelInfoResponse = await self._stub.GetModelInfo(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        return response

    async def tokenize(self, prompt: str | Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The ids that `generate` would use for a text or a chat."""
        request = message(pb.TokenizeRequest, **prompt_fields(prompt))
        try:
            response = await self._stub.Tokenize(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        return tuple(response.token_ids)
