"""Protos to client values and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from trtspec.client.events import Accepted, Chunk, Event, Finished, Pass, RequestFailed
from trtspec.decoding.stats import SpeculationStats
from trtspec.types import FinishReason, Method
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec

_DETAILS_KEY = "grpc-status-details-bin"
_PARTIAL_KEY = "trtspec-partial-bin"

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages such as `{"role": "user", "content": "hi"}`."""


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """A prompt as the fields of a request message."""
    if isinstance(prompt, str):
        return {"text": prompt}
    messages: list[dict[str, Any]] = [dict(item) for item in prompt if isinstance(item, Mapping)]
    if messages:
        return {"chat": pb.Chat(messages=[pb.ChatMessage(**message) for message in messages])}
    return {"token_ids": pb.TokenIds(ids=[item for item in prompt if isinstance(item, int)])}


def event(response: pb.GenerateResponse) -> Event:
    """A streamed message as its value."""
    match response.WhichOneof("event"):
        case "accepted":
            message = response.accepted
            return Accepted(
                request_id=message.request_id,
                seed=message.seed,
                model=message.model,
                engine_id=message.engine_id,
                method=_method(message.speculation.method),
                max_draft_tokens=message.speculation.max_draft_tokens,
                reason=message.speculation.reason,
                prompt_tokens=message.prompt_token_count,
            )
        case "chunk":
            passes = tuple(_pass(item) for item in response.chunk.passes)
            return Chunk(tuple(response.chunk.token_ids), response.chunk.text, passes)
        case _:
            return _finished(response.finished)


def _pass(item: spec.DecodePass) -> Pass:
    return Pass(
        index=item.pass_index,
        drafted=item.drafted_count,
        accepted=item.accepted_count,
        verified_nodes=item.verified_node_count,
        emitted=item.emitted_count,
        cut=item.cut,
    )


def _finished(message: pb.Finished) -> Finished:
    output, timings = message.outputs[0], message.timings
    stop = output.WhichOneof("matched_stop")
    return Finished(
        reason=FinishReason[pb.FinishReason.Name(output.finish_reason).removeprefix("FINISH_REASON_")],
        stop_string=output.stop_string if stop == "stop_string" else None,
        stop_token_id=output.stop_token_id if stop == "stop_token_id" else None,
        prompt_tokens=message.usage.prompt_token_count,
        completion_tokens=message.usage.completion_token_count,
        text=output.text,
        time_to_first_token=_seconds(timings, "time_to_first_token"),
        decode_seconds=_seconds(timings, "decode"),
        total_seconds=_seconds(timings, "total"),
        stats=_stats(message) if message.HasField("speculation") else None,
    )


def _stats(message: pb.Finished) -> SpeculationStats:
    totals = message.speculation
    return SpeculationStats(
        prefill_tokens=message.usage.completion_token_count - totals.emitted_count,
        decode_passes=totals.decode_passes,
        spec_steps=totals.spec_steps,
        drafted=totals.drafted_count,
        accepted=totals.accepted_count,
        verified_nodes=totals.verified_node_count,
        emitted=totals.emitted_count,
        rejected_steps=totals.rejected_steps,
        histogram=tuple(totals.accepted_length_histogram),
        drafted_at=tuple(totals.drafted_per_position),
        accepted_at=tuple(totals.accepted_per_position),
    )


def _method(number: int) -> Method:
    return Method[spec.SpeculationMethod.Name(number).removeprefix("SPECULATION_METHOD_")]


def _seconds(timings: pb.Timings, name: str) -> float | None:
    return getattr(timings, name).ToNanoseconds() / 1e9 if timings.HasField(name) else None


def duration(seconds: float) -> Duration:
    """Seconds as a proto."""
    return Duration(seconds=int(seconds), nanos=round((seconds - int(seconds)) * 1e9))


def failure(error: grpc.aio.AioRpcError) -> RequestFailed:
    """A failed call with what its details and trailers tell."""
    # The stubs describe metadata as single items; a received one is a sequence of pairs.
    trailers = dict(cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ()))
    info, violation = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status_pb2.Status.FromString(trailers.get(_DETAILS_KEY, b"")).details:
        if not detail.Unpack(info):
            detail.Unpack(violation)
    return RequestFailed(
        error.code(),
        error.details() or error.code().name,
        info.reason,
        violation.field_violations[0].field if violation.field_violations else "",
        _finished(pb.Finished.FromString(trailers[_PARTIAL_KEY])) if _PARTIAL_KEY in trailers else None,
    )
