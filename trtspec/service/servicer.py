"""The Inference service. It only translates: requests to the engine's terms, events to messages, errors to statuses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import grpc

from trtspec.errors import EngineFault, EngineLoading, SlowReader
from trtspec.executors.base import Executor
from trtspec.service import prompt as prompts
from trtspec.service import responses
from trtspec.service.admission import Admission
from trtspec.service.callers import ANYONE, SECRET_METADATA, Access
from trtspec.service.checks import check
from trtspec.service.features import check_model
from trtspec.service.limits import check_required
from trtspec.service.model import ServedModel
from trtspec.service.observing import NOBODY, Arrival, Clock, Observer, Summary
from trtspec.service.options import AdmissionOptions
from trtspec.service.requests import ParsedRequest, chat_prompt, parse_request
from trtspec.service.resolve import resolve
from trtspec.service.run import GenerateRun, Write, deadline
from trtspec.service.status import reason, to_status
from trtspec.service.text import ChatPrompt, Tokenizer
from trtspec.service.waiting import cancelled_from_outside
from trtspec.service.writing import ClientGone, Writer
from trtspec.trailers import PARTIAL_KEY
from trtspec.types import Request
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

_ENCODE_THREADS = 2
_DECODE_THREADS = 2
"""Both are native code that frees the interpreter; more threads would take cores from the engine. Long texts that
are cut into tokens hold their own threads only, so that answers go on."""

_LEAVE_SECONDS = 1.0
"""Time for the status of a client that reads nothing; gRPC keeps it for the client, and nothing else of the call."""

T = TypeVar("T")
Q = TypeVar("Q")
R = TypeVar("R")
Context = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]


@dataclass(frozen=True, slots=True)
class Backend:
    """What requests need once the engine is open."""

    model: ServedModel
    executor: Executor
    tokenizer: Tokenizer
    admission: Admission
    options: AdmissionOptions
    max_message_bytes: int


Read = Callable[[Backend], pb.GenerateRequest]


class _Call:
    """What is known of a Generate call, to be told at its end."""

    def __init__(self, message_bytes: int, context: Context, observer: Observer) -> None:
        self.clock = Clock(time.monotonic())
        self.parsed: ParsedRequest | None = None
        self.run: GenerateRun | None = None
        given = context.invocation_metadata() or ()
        metadata = tuple((key, value) for key, value in given if key not in SECRET_METADATA)
        self.message_bytes = message_bytes
        self.observer = observer.arrived(Arrival(self.clock.arrival, self.message_bytes, context.peer(), metadata))

    def end(self, status: grpc.StatusCode, reason: str) -> None:
        """Tell the observer."""
        now = time.monotonic()
        if self.run:
            return self.observer.ended(self.run.summary(now, status, reason))
        caller = self.parsed.caller if self.parsed else None
        self.observer.ended(Summary(self.clock, now, status, reason, caller, self.parsed))


class InferenceServicer(rpc.InferenceServicer):
    """Answers requests of the opened engine, and refuses them before it is open."""

    def __init__(self, observer: Observer = NOBODY, access: Access = ANYONE) -> None:
        self._backend: Backend | None = None
        self._observer = observer
        self._access = access
        self._encoders = ThreadPoolExecutor(_ENCODE_THREADS, thread_name_prefix="encode")
        self._decoders = ThreadPoolExecutor(_DECODE_THREADS, thread_name_prefix="decode")

    def open(self, backend: Backend) -> None:
        """Answer requests from now on."""
        self._backend = backend

    def close(self) -> None:
        """Free the threads; waits for what they do."""
        for pool in (self._encoders, self._decoders):
            pool.shutdown(wait=True, cancel_futures=True)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """Stream one request."""
        await self.answer(request.ByteSize(), lambda _: request, context, context.write)

    async def answer(self, message_bytes: int, read: Read, context: Context, write: Write) -> None:
        """Stream one request of any interface: `read` gives it in our terms, and `write` takes our messages.

        A message is written, not yielded, so that a cancelled call ends inside this frame.
        """
        call = _Call(message_bytes, context, self._observer)
        try:
            backend = self.opened()
            caller = self._access.caller(context)
            parsed = call.parsed = parse_request(read(backend), backend.model, caller)
            check_required(parsed.speculation, backend.executor.speculation_limit())
            with backend.admission.admit(parsed.request_id, caller.name, call.message_bytes) as place:
                core = await self._resolve(parsed, backend, call.clock.arrival, context.time_remaining())
                decode, pool = backend.tokenizer.decode, self._decoders
                piece = backend.tokenizer.piece
                run = GenerateRun(
                    parsed, core, backend.model, call.clock, decode, pool, place.cancelled, call.observer, piece
                )
                call.run = run
                with Writer(write, backend.options.reader_seconds, place.start) as writer:
                    await run.stream(backend.executor, writer.write)
        except ClientGone:
            call.end(grpc.StatusCode.CANCELLED, "")
            raise asyncio.CancelledError from None
        except Exception as error:
            failure = error
        except BaseException as error:
            if cancelled_from_outside(error):
                call.end(grpc.StatusCode.CANCELLED, "")
                raise
            # gRPC would send no status at all, and the client would wait for ever.
            failure = EngineFault("the request was cancelled inside the server")
        else:
            return call.end(grpc.StatusCode.OK, "")
        status = to_status(failure)
        call.end(status.code, reason(failure))
        partial = call.run.partial() if call.run else None
        if isinstance(failure, SlowReader):
            return await _leave(context, status, partial)
        await _abort(context, status, partial)

    async def GetModelInfo(
        self,
        request: pb.GetModelInfoRequest,
        context: grpc.aio.ServicerContext[pb.GetModelInfoRequest, pb.GetModelInfoResponse],
    ) -> pb.GetModelInfoResponse:
        """Describe the model."""
        try:
            backend = self.opened()
            self._access.caller(context)
            check_model(request.model, backend.model)
            return responses.model_info(
                backend.model,
                queued=backend.options.max_queued_requests,
                request_bytes=backend.max_message_bytes,
                has_chat=backend.tokenizer.has_chat_template,
                limit=backend.executor.speculation_limit(),
            )
        except Exception as error:
            failure = error
        await _abort(context, to_status(failure))

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext[pb.TokenizeRequest, pb.TokenizeResponse]
    ) -> pb.TokenizeResponse:
        """Show the ids that Generate would use."""
        try:
            backend = self.opened()
            self._access.caller(context)
            check_model(request.model, backend.model)
            check(request.WhichOneof("prompt") is not None, "prompt", "not set", "one of text and chat")
            prompt = request.text if request.WhichOneof("prompt") == "text" else chat_prompt(request.chat)
            with backend.admission.tokenize():
                return await self._encode(lambda: _tokenize(prompt, backend, request.include_pieces))
        except Exception as error:
            failure = error
        await _abort(context, to_status(failure))

    def opened(self) -> Backend:
        """What answers. Raises `EngineLoading` before it is there."""
        if self._backend is None:
            raise EngineLoading("the engine is still loading; wait until the health service says SERVING")
        return self._backend

    async def _resolve(
        self, parsed: ParsedRequest, backend: Backend, arrival: float, remaining: float | None
    ) -> Request:
        """The request in the engine's terms."""
        ends = deadline(arrival, parsed.time_budget, remaining, time.monotonic())
        call = partial(resolve, parsed, backend.tokenizer, backend.model, ends)
        return await self._encode(call) if parsed.has_text else call()

    async def _encode(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._encoders, call)


def _tokenize(prompt: str | ChatPrompt, backend: Backend, pieces: bool) -> pb.TokenizeResponse:
    tokenizer = backend.tokenizer
    text = prompts.text_of(prompt, tokenizer)
    ids = prompts.encode_text(text, tokenizer, backend.model, rendered=isinstance(prompt, ChatPrompt))
    return pb.TokenizeResponse(token_ids=ids, text=text, pieces=tokenizer.pieces(ids) if pieces else ())


async def _abort(
    context: grpc.aio.ServicerContext[Q, R], status: grpc.Status, partial: bytes | None = None
) -> NoReturn:
    trailing = tuple(status.trailing_metadata or ())
    if partial is not None:
        trailing += ((PARTIAL_KEY, partial),)
    await context.abort(status.code, status.details, trailing)


async def _leave(context: grpc.aio.ServicerContext[Q, R], status: grpc.Status, partial: bytes | None) -> None:
    """End a call whose status cannot be sent before the client reads what comes before it."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_abort(context, status, partial), _LEAVE_SECONDS)
