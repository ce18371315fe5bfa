"""The connection to a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import grpc

from trtspec.client import convert
from trtspec.client.events import Accepted, Chunk, Completion, Event, Finished, RequestFailed
from trtspec.client.fields import Prompt, duration, message, prompt_fields
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec

_sampling = partial(message, pb.SamplingOptions, "sampling.")
_stopping = partial(message, pb.StoppingOptions, "stopping.")
_speculation = partial(message, spec.SpeculationOptions, "speculation.")
_stream_options = partial(message, pb.StreamOptions, "stream_options.")


class Client:
    """A connection to one server; use it as an async context manager."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._stub = rpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(None)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        include_stop_string: bool = False,
        ignore_eos: bool = False,
        speculation: str = "default",
        max_draft_tokens: int | None = None,
        stats_level: str = "summary",
        granularity: str = "step",
        min_interval: float | None = None,
        full_output: bool = False,
        time_budget: float | None = None,
        priority: int = 0,
        tenant: str = "",
        tags: Mapping[str, str] | None = None,
        session_key: str = "",
        cache_salt: str = "",
        request_id: str = "",
        model: str = "",
        timeout: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Stream an answer. Leaving the loop early cancels the request once the iterator is closed."""
        request = message(
            pb.GenerateRequest,
            **prompt_fields(prompt),
            sampling=_sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed),
            stopping=_stopping(
                max_tokens=max_tokens,
                stop_strings=stop,
                stop_token_ids=stop_token_ids,
                include_stop_string=include_stop_string,
                ignore_eos=ignore_eos,
            ),
            speculation=_speculation(mode=speculation, max_draft_tokens=max_draft_tokens, stats_level=stats_level),
            stream_options=_stream_options(
                granularity=granularity,
                min_interval=duration("stream_options.min_interval", min_interval),
                include_full_output=full_output,
            ),
            time_budget=duration("time_budget", time_budget),
            priority=priority,
            tenant=tenant,
            tags=tags,
            session_key=session_key,
            cache_salt=cache_salt,
            request_id=request_id,
            model=model,
        )
        return self._stream(request, timeout)

    async def _stream(self, request: pb.GenerateRequest, timeout: float | None) -> AsyncGenerator[Event, None]:
        call = self._stub.Generate(request, timeout=timeout)
        try:
            async for response in call:
                if (event := convert.event(response)) is not None:
                    yield event
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        finally:
            call.cancel()

    async def complete(self, prompt: Prompt, **options: Any) -> Completion:
        """The whole answer of `generate`, which takes the same options."""
        accepted: Accepted | None = None
        finished: Finished | None = None
        texts: list[str] = []
        ids: list[int] = []
        async for event in self.generate(prompt, **options):
            match event:
                case Accepted():
                    accepted = event
                case Chunk():
                    texts.append(event.text)
                    ids.extend(event.token_ids)
                case Finished():
                    finished = event
        if accepted is None or finished is None:
            raise RequestFailed(grpc.StatusCode.INTERNAL, "the stream ended without its last message")
        if finished.token_ids is not None:
            return Completion(finished.text or "", finished.token_ids, accepted, finished)
        return Completion("".join(texts), tuple(ids), accepted, finished)

    async def model_info(self, model: str = "") -> pb.GetModelInfoResponse:
        """What the server serves, as the proto says it."""
        request = message(pb.GetModelInfoRequest, model=model)
        try:
            response: pb.GetModelInfoResponse = await self._stub.GetModelInfo(request)
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        return response

    async def tokenize(self, prompt: str | Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The ids that `generate` would use for a text or a chat."""
        request = message(pb.TokenizeRequest, **prompt_fields(prompt))
        try:
            response = await self._stub.Tokenize(request)
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        return tuple(response.token_ids)
