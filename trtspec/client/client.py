"""The connection to a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc

from trtspec.client import convert
from trtspec.client.convert import Prompt
from trtspec.client.events import Accepted, Chunk, Completion, Event, Finished, RequestFailed
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec


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

    async def generate(
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
        ignore_eos: bool = False,
        speculation: str = "default",
        max_draft_tokens: int | None = None,
        granularity: str = "step",
        full_output: bool = False,
        time_budget: float | None = None,
        priority: int = 0,
        request_id: str = "",
        model: str = "",
        timeout: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Stream an answer. Leaving the loop early cancels the request once the iterator is closed."""
        message = pb.GenerateRequest(
            **convert.prompt_fields(prompt),
            sampling=pb.SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed),
            stopping=pb.StoppingOptions(
                max_tokens=max_tokens, stop_strings=stop, stop_token_ids=stop_token_ids, ignore_eos=ignore_eos
            ),
            speculation=spec.SpeculationOptions(
                mode=f"SPECULATION_MODE_{speculation.upper()}", max_draft_tokens=max_draft_tokens
            ),
            stream_options=pb.StreamOptions(
                granularity=f"STREAM_GRANULARITY_{granularity.upper()}", include_full_output=full_output
            ),
            time_budget=None if time_budget is None else convert.duration(time_budget),
            priority=priority,
            request_id=request_id,
            model=model,
        )
        call = self._stub.Generate(message, timeout=timeout)
        try:
            async for response in call:
                yield convert.event(response)
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
        return Completion("".join(texts) or finished.text, tuple(ids), accepted, finished)

    async def model_info(self, model: str = "") -> pb.GetModelInfoResponse:
        """What the server serves, as the proto says it."""
        try:
            response: pb.GetModelInfoResponse = await self._stub.GetModelInfo(pb.GetModelInfoRequest(model=model))
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        return response

    async def tokenize(self, prompt: str | Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The ids that `generate` would use for a text or a chat."""
        try:
            response = await self._stub.Tokenize(pb.TokenizeRequest(**convert.prompt_fields(prompt)))
        except grpc.aio.AioRpcError as error:
            raise convert.failure(error) from None
        return tuple(response.token_ids)
