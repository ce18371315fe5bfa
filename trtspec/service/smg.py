"""The `TrtllmService` of the SMG gateway, beside Inference and over the same core.

A request is translated, takes the way of every other request, and its messages are translated back. The gateway sends
ids, cuts text at stop strings itself, and calls Abort for streams that it drops. Its messages come from the package
`smg-grpc-proto`; TensorRT-LLM has a copy of its own, which must not be loaded into the same process, as it never is.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from trtspec import __version__
from trtspec.capabilities import Support
from trtspec.errors import MissingDependency, RequestError, Unsupported
from trtspec.service.callers import Access
from trtspec.service.servicer import Backend, InferenceServicer
from trtspec.service.smg_requests import translated
from trtspec.service.smg_tokenizer import TokenizerBundle
from trtspec.service.status import to_status
from trtspec.types import Health
from trtspec.v1 import inference_pb2 as pb

try:
    from smg_grpc_proto.generated import trtllm_service_pb2 as smg
    from smg_grpc_proto.generated import trtllm_service_pb2_grpc as rpc
except ModuleNotFoundError as missing:
    raise MissingDependency(
        "--smg needs smg-grpc-proto, which is not installed here; pip install 'trtspec[smg]'"
    ) from missing

SERVICE = smg.DESCRIPTOR.services_by_name["TrtllmService"].full_name
HEALTHY = "OK"
"""The one status that the gateway takes for healthy."""
_REASONS = {
    pb.FINISH_REASON_EOS: "stop",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CANCELLED: "cancelled",
    pb.FINISH_REASON_DEADLINE: "timeout",
}
"""TensorRT-LLM's words."""

Context = Any
"""Of calls whose messages are untyped."""


def add(server: grpc.aio.Server, inference: InferenceServicer, access: Access) -> str:
    """Add the service to a server, and give its name."""
    rpc.add_TrtllmServiceServicer_to_server(SmgServicer(inference, access), server)
    return str(SERVICE)


class SmgServicer(rpc.TrtllmServiceServicer):  # type: ignore[misc] # untyped
    """Translates for the servicer that does the work."""

    def __init__(self, inference: InferenceServicer, access: Access) -> None:
        self._inference = inference
        self._access = access
        self._live: Counter[tuple[str, str]] = Counter()
        """Callers and ids of requests that can be aborted."""
        self._bundle: TokenizerBundle | None = None

    async def Generate(self, request: Any, context: Context) -> None:
        """Stream one request."""
        answer = Answer(request, context.write)
        with self._abortable(request.request_id, context):
            await self._inference.answer(request.ByteSize(), answer.read, context, answer.write)

    async def Abort(self, request: Any, context: Context) -> Any:
        """End a request of the same caller that this process answers."""
        async with _statuses(context):
            name = request.request_id
            found = self._live[self._access.caller(context).name, name] > 0
            done = found and self._inference.opened().executor.cancel(name)
            return smg.AbortResponse(success=done, message="aborted" if done else "no such request lives here")

    async def HealthCheck(self, request: Any, context: Context) -> Any:
        """Say OK, or what is wrong. Open to all, as health is."""
        return smg.HealthCheckResponse(status=self._condition())

    async def GetModelInfo(self, request: Any, context: Context) -> Any:
        """Describe the model. What an engine does not tell of its target is 0, as the interface has no other word."""
        async with _statuses(context):
            self._access.caller(context)
            model = self._inference.opened().model
            honoured = [name for name, item in model.capabilities.items() if item.support is not Support.REFUSED]
            return smg.GetModelInfoResponse(
                model_id=model.info.model,
                max_input_len=model.context_tokens - 1,
                max_seq_len=model.context_tokens,
                max_batch_size=model.info.limits.max_batch_size,
                vocab_size=model.info.limits.vocabulary_size,
                supported_features=honoured,
            )

    async def GetServerInfo(self, request: Any, context: Context) -> Any:
        """Describe the server: to the gateway it is one worker, whatever it spans."""
        async with _statuses(context):
            self._access.caller(context)
            info = self._inference.opened().model.info
            ones = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "world_size")
            return smg.GetServerInfoResponse(version=__version__, backend=info.backend, **dict.fromkeys(ones, 1))

    async def GetTokenizer(self, request: Any, context: Context) -> AsyncIterator[Any]:
        """Stream the tokenizer's files as a zip archive."""
        async with _statuses(context):
            self._access.caller(context)
            backend = self._inference.opened()
            if self._bundle is None:
                self._bundle = await asyncio.to_thread(TokenizerBundle.of, backend)
            for chunk in self._bundle.chunks():
                yield chunk

    async def Embed(self, request: Any, context: Context) -> Any:
        """Refused: this server generates."""
        async with _statuses(context):
            raise Unsupported("this server makes no embeddings", feature="Embed")

    async def SubscribeKvEvents(self, request: Any, context: Context) -> None:
        """Refused, upon which the gateway routes without."""
        async with _statuses(context):
            raise Unsupported("this server tells no events of its KV cache", feature="SubscribeKvEvents")

    def _condition(self) -> str:
        try:
            backend = self._inference.opened()
        except RequestError as error:
            return str(error)
        if backend.admission.draining:
            return "the server is shutting down"
        health = backend.executor.health()
        return HEALTHY if health is Health.SERVING else f"the engine is {health.value}"

    @contextmanager
    def _abortable(self, request_id: str, context: Context) -> Iterator[None]:
        try:
            key = self._access.caller(context).name, request_id
        except RequestError:
            key = "", ""  # the request is refused for the same reason
        self._live[key] += 1
        try:
            yield
        finally:
            self._live[key] -= 1
            if not self._live[key]:
                del self._live[key]


class Answer:
    """One request's messages in the gateway's terms."""

    def __init__(self, request: Any, write: Callable[[Any], Awaitable[None]]) -> None:
        self._request = request
        self._write = write
        self._id = request.request_id
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._tokens: Counter[int] = Counter()
        """Of each output so far, withheld ones included."""
        self._drafted: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()
        self._ends: frozenset[int] = frozenset()
        """Ids that end an output; the gateway wants them only if it says so."""

    def read(self, backend: Backend) -> pb.GenerateRequest:
        """The request in our terms."""
        if not self._request.include_stop_token_in_output:
            eos = () if self._request.ignore_eos else backend.model.defaults.eos_ids
            self._ends = frozenset({*eos, *self._request.stop_token_ids})
        return translated(self._request, backend.model)

    async def write(self, message: pb.GenerateResponse) -> None:
        """Take a message of ours."""
        match message.WhichOneof("event"):
            case "accepted":
                self._id = message.accepted.request_id
                self._prompt_tokens = message.accepted.prompt_token_count
                self._cached_tokens = message.accepted.cached_prompt_token_count
            case "chunk":
                await self._chunk(message.chunk)
            case "finished":
                for output in message.finished.outputs:
                    complete = self._complete(output, message.finished)
                    await self._write(smg.GenerateResponse(request_id=self._id, complete=complete))

    async def _chunk(self, chunk: pb.Chunk) -> None:
        index = chunk.output_index
        self._tokens[index] += len(chunk.token_ids)
        self._drafted[index] += sum(item.drafted_count for item in chunk.passes)
        self._accepted[index] += sum(item.accepted_count for item in chunk.passes)
        kept = self._kept(chunk.token_ids)
        if self._request.streaming and kept:
            told = smg.GenerateStreamChunk(
                token_ids=chunk.token_ids[:kept],
                sequence_index=index,
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self._tokens[index],
                cached_tokens=self._cached_tokens,
                logprobs=_logprobs(chunk.logprobs[:kept]),
            )
            await self._write(smg.GenerateResponse(request_id=self._id, chunk=told))

    def _kept(self, ids: Sequence[int]) -> int:
        """How many ids the gateway gets: an id that ends an output is its last one."""
        return len(ids) - (bool(ids) and ids[-1] in self._ends)

    def _complete(self, output: pb.Output, finished: pb.Finished) -> Any:
        index, kept = output.output_index, self._kept(output.token_ids)
        result = smg.GenerateComplete(
            output_token_ids=output.token_ids[:kept],
            sequence_index=index,
            finish_reason=_REASONS[output.finish_reason],
            prompt_tokens=self._prompt_tokens,
            completion_tokens=output.completion_token_count,
            cached_tokens=self._cached_tokens,
            logprobs=_logprobs(output.logprobs[:kept]),
            prompt_logprobs=_logprobs(finished.prompt_logprobs) if index == 0 else (),
            spec_accepted_tokens=self._accepted[index],
            spec_draft_tokens=self._drafted[index],
        )
        if output.finish_reason == pb.FINISH_REASON_STOP:
            if output.WhichOneof("matched_stop") == "stop_string":
                result.matched_stop_str = output.stop_string
            else:
                result.matched_token_id = output.stop_token_id
        if self._request.output_config.return_perf_metrics:
            result.perf_metrics.CopyFrom(_perf_metrics(finished.timings, time.time()))
        return result


def _logprobs(positions: Iterable[pb.TokenLogprobs]) -> list[Any]:
    return [
        smg.TokenLogprob(
            token_id=item.chosen.token_id,
            logprob=_logprob(item.chosen),
            top_logprobs=[smg.TopLogprob(token_id=top.token_id, logprob=_logprob(top)) for top in item.top],
        )
        for item in positions
    ]


def _logprob(item: pb.TokenLogprob) -> float:
    """Not a number where there is none: 0 would say that the token was certain."""
    return item.logprob if item.HasField("logprob") else math.nan


def _perf_metrics(timings: pb.Timings, now: float) -> Any:
    """Instants in Unix seconds, as TensorRT-LLM has them; those of transfers that did not happen stay 0."""
    seconds = {name.name: value.ToNanoseconds() / 1e9 for name, value in timings.ListFields()}
    arrival = now - seconds["total"]
    result = smg.PerfMetrics(arrival_time=arrival, first_scheduled_time=arrival + seconds.get("queue", 0.0))
    if (first := seconds.get("time_to_first_token")) is not None:
        result.first_token_time = arrival + first
        result.last_token_time = arrival + first + seconds.get("decode", 0.0)
    return result


@asynccontextmanager
async def _statuses(context: Context) -> AsyncIterator[None]:
    """An error inside ends the call with its status."""
    try:
        yield
        return
    except Exception as error:
        status = to_status(error)
    await context.abort(status.code, status.details, tuple(status.trailing_metadata or ()))
