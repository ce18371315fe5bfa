"""Answers to client values. What a newer server may add is passed over, or kept as a number."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from trtspec.client.events import Accepted, Chunk, Event, Finished, Output, Pass, RequestFailed
from trtspec.decoding.stats import SpeculationStats
from trtspec.trailers import PARTIAL_KEY
from trtspec.types import FinishReason, Method, OutputLaw, TokenLogprob, TokenLogprobs
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec

_DETAILS_KEY = "grpc-status-details-bin"

E = TypeVar("E", bound=enum.Enum)


def event(response: pb.GenerateResponse) -> Event | None:
    """A streamed message as its value; None for a kind that this version does not know."""
    match response.WhichOneof("event"):
        case "accepted":
            message = response.accepted
            return Accepted(
                request_id=message.request_id,
                seed=message.seed,
                model=message.model,
                engine_id=message.engine_id,
                method=_known(Method, spec.SpeculationMethod, "SPECULATION_METHOD_", message.speculation.method),
                max_draft_tokens=message.speculation.max_draft_tokens,
                reason=message.speculation.reason,
                unverified_target=message.speculation.unverified_target,
                output_law=_known(OutputLaw, spec.OutputLaw, "OUTPUT_LAW_", message.output_law),
                prompt_tokens=message.prompt_token_count,
            )
        case "chunk":
            return _chunk(response.chunk)
        case "finished":
            return _finished(response.finished)
        case _:
            return None


def _chunk(message: pb.Chunk) -> Chunk:
    return Chunk(
        token_ids=tuple(message.token_ids),
        text=message.text,
        passes=tuple(_pass(item) for item in message.passes),
        output_index=message.output_index,
        logprobs=_logprobs(message.logprobs),
    )


def _pass(item: spec.DecodePass) -> Pass:
    return Pass(
        index=item.pass_index,
        drafted=_set(item, "drafted_count"),
        accepted=_set(item, "accepted_count"),
        verified_nodes=_set(item, "verified_node_count"),
        emitted=item.emitted_count,
        cut=item.cut,
        prefill=item.prefill,
    )


def _finished(message: pb.Finished) -> Finished:
    return Finished(
        outputs=tuple(_output(item) for item in message.outputs or [pb.Output()]),
        prompt_tokens=message.usage.prompt_token_count,
        completion_tokens=message.usage.completion_token_count,
        cached_prompt_tokens=_set(message.usage, "cached_prompt_token_count"),
        time_to_first_token=_seconds(message.timings, "time_to_first_token"),
        decode_seconds=_seconds(message.timings, "decode"),
        total_seconds=_seconds(message.timings, "total"),
        stats=_stats(message),
        prompt_logprobs=_logprobs(message.prompt_logprobs),
    )


def _output(item: pb.Output) -> Output:
    stop, whole = item.WhichOneof("matched_stop"), item.HasField("text")
    return Output(
        index=item.output_index,
        reason=_known(FinishReason, pb.FinishReason, "FINISH_REASON_", item.finish_reason),
        stop_string=item.stop_string if stop == "stop_string" else None,
        stop_token_id=item.stop_token_id if stop == "stop_token_id" else None,
        completion_tokens=item.completion_token_count,
        text=item.text if whole else None,
        token_ids=tuple(item.token_ids) if whole else None,
        logprobs=_logprobs(item.logprobs),
    )


def _logprobs(positions: Iterable[pb.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(_logprob(position.chosen), tuple(_logprob(item) for item in position.top))
        for position in positions
    )


def _logprob(item: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(item.token_id, _set(item, "logprob"), _set(item, "rank"))


def _stats(message: pb.Finished) -> SpeculationStats | None:
    return statistics(message.speculation, message.usage.completion_token_count)


def statistics(totals: spec.SpeculationStats, completion_tokens: int | None = None) -> SpeculationStats | None:
    """Statistics as the values that define their ratios; None where the server does not tell all of them.

    First tokens, of which there is no number of their own, are what is left of all tokens.
    """
    counts = ("decode_passes", "spec_steps", "drafted_count", "accepted_count", "verified_node_count", "emitted_count")
    if not all(totals.HasField(name) for name in (*counts, "rejected_steps")):
        return None
    return SpeculationStats(
        prefill_tokens=0 if completion_tokens is None else completion_tokens - totals.emitted_count,
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


def _known(kind: type[E], numbers: Any, prefix: str, number: int) -> E | str:
    """The value of an enum number, or a text with the number that this version has no word for."""
    name = numbers.Name(number).removeprefix(prefix) if number in numbers.values() else ""
    return kind[name] if name in kind.__members__ else f"unknown({number})"


def _set(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _seconds(timings: pb.Timings, name: str) -> float | None:
    return getattr(timings, name).ToNanoseconds() / 1e9 if timings.HasField(name) else None


def failure(error: grpc.aio.AioRpcError) -> RequestFailed:
    """A failed call with what its details and trailers tell."""
    # The stubs describe metadata as single items; a received one is a sequence of pairs.
    trailers = dict(cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ()))
    info, violation = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(trailers.get(_DETAILS_KEY, b"")).details:
        for known in (info, violation, retry):
            detail.Unpack(known)
    return RequestFailed(
        error.code(),
        error.details() or error.code().name,
        info.reason,
        violation.field_violations[0].field if violation.field_violations else "",
        _finished(pb.Finished.FromString(trailers[PARTIAL_KEY])) if PARTIAL_KEY in trailers else None,
        retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
    )
