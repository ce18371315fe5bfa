"""Core values to response protos; the only file that writes `GenerateResponse` and `GetModelInfoResponse`."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from trtspec import __version__
from trtspec.capabilities import Support
from trtspec.service.assemble import Delta, OutputAssembler
from trtspec.service.model import ServedModel
from trtspec.service.requests import AppliedSpeculation, ParsedRequest, StatsLevel
from trtspec.types import FinishReason, Method, OutputLaw, PassRecord, SamplingParams
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec

_SUPPORT = {
    Support.HONOURED: pb.SUPPORT_HONOURED,
    Support.REFUSED: pb.SUPPORT_REFUSED,
    Support.NOT_LOSSLESS: pb.SUPPORT_NOT_LOSSLESS,
}
OUTPUT_INDEX = 0
"""A request has one output in this release."""


@dataclass(slots=True)
class Clock:
    """Instants of one request, on `time.monotonic()`; None is what did not happen."""

    arrival: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None


def accepted(request: ParsedRequest, model: ServedModel, prompt_tokens: int) -> pb.GenerateResponse:
    """The first message."""
    return pb.GenerateResponse(
        accepted=pb.Accepted(
            request_id=request.request_id,
            seed=request.seed,
            model=model.info.model,
            engine_id=model.info.engine_id,
            speculation=_applied(request.speculation),
            output_law=_law(model.info.output_law),
            prompt_token_count=prompt_tokens,
        )
    )


def chunk(output_index: int, delta: Delta) -> pb.GenerateResponse:
    """Progress of an output."""
    return pb.GenerateResponse(
        chunk=pb.Chunk(
            output_index=output_index,
            token_ids=delta.token_ids,
            text=delta.text,
            passes=[_pass(output_index, record) for record in delta.passes],
        )
    )


def finished(
    request: ParsedRequest, prompt_tokens: int, output: OutputAssembler, clock: Clock, now: float, *, totals_only: bool
) -> pb.Finished:
    """The last message; with `totals_only` what trailing metadata tell of a request that failed."""
    return pb.Finished(
        outputs=[_output(output, totals_only)],
        usage=pb.Usage(
            prompt_token_count=prompt_tokens,
            completion_token_count=output.count,
            total_token_count=prompt_tokens + output.count,
        ),
        timings=_timings(clock, now),
        speculation=_stats(request, output, totals_only),
    )


def model_info(model: ServedModel, *, queued: int, request_bytes: int, has_chat: bool) -> pb.GetModelInfoResponse:
    """What is served, with limits, capabilities and defaults."""
    info, limits = model.info, model.info.limits
    drafts = model.default_draft_tokens
    return pb.GetModelInfoResponse(
        model=info.model,
        engine_id=info.engine_id,
        backend=info.backend,
        method=_method(info.method),
        architecture=info.architecture,
        dtype=info.dtype,
        quantization=info.quantization,
        limits=pb.ModelLimits(
            max_context_tokens=limits.max_context_tokens,
            max_batch_size=limits.max_batch_size,
            max_draft_tokens=limits.max_draft_tokens,
            max_tree_nodes=limits.max_tree_nodes,
            max_queued_requests=queued,
            max_request_bytes=request_bytes,
            max_outputs=1,
            max_pass_tokens=limits.max_pass_tokens,
            kv_cache_tokens=limits.kv_cache_tokens,
            vocabulary_size=limits.vocabulary_size,
        ),
        capabilities=[
            pb.Capability(feature=item.feature, support=_SUPPORT[item.support], reason=item.reason)
            for item in model.capabilities.values()
        ],
        defaults=pb.ModelDefaults(
            sampling=_sampling(model.defaults.sampling),
            speculation=spec.SpeculationOptions(
                mode=spec.SPECULATION_MODE_ON if drafts else spec.SPECULATION_MODE_OFF,
                max_draft_tokens=drafts or None,
                stats_level=spec.STATS_LEVEL_SUMMARY,
            ),
            eos_token_ids=sorted(model.defaults.eos_ids),
            source=model.defaults.source,
        ),
        output_law=_law(info.output_law),
        has_chat_template=has_chat,
        server_version=__version__,
        engine_facts_json=info.engine_facts,
    )


def _method(value: Method) -> str:
    return f"SPECULATION_METHOD_{value.name}"


def _law(value: OutputLaw) -> str:
    return f"OUTPUT_LAW_{value.name}"


def _reason(value: FinishReason) -> str:
    return f"FINISH_REASON_{value.name}"


def _applied(value: AppliedSpeculation) -> spec.AppliedSpeculation:
    return spec.AppliedSpeculation(
        method=_method(value.method), max_draft_tokens=value.max_draft_tokens, reason=value.reason
    )


def _sampling(value: SamplingParams) -> pb.SamplingOptions:
    return pb.SamplingOptions(temperature=value.temperature, top_k=value.top_k, top_p=value.top_p, min_p=value.min_p)


def _pass(output_index: int, record: PassRecord) -> spec.DecodePass:
    return spec.DecodePass(
        output_index=output_index,
        pass_index=record.pass_index,
        drafted_count=record.drafted,
        accepted_count=record.accepted,
        verified_node_count=record.verified_nodes,
        emitted_count=record.emitted,
        cut=record.cut,
        prefill=record.prefill,
    )


def _output(output: OutputAssembler, totals_only: bool) -> pb.Output:
    end, whole = output.end, output.keeps_output and not totals_only
    return pb.Output(
        output_index=OUTPUT_INDEX,
        finish_reason=_reason(end.reason if end else FinishReason.ERROR),
        stop_string=end.stop_string if end else None,
        stop_token_id=end.stop_id if end else None,
        completion_token_count=output.count,
        text=output.text if whole else None,
        token_ids=output.token_ids if whole else (),
    )


def _stats(request: ParsedRequest, output: OutputAssembler, totals_only: bool) -> spec.SpeculationStats | None:
    if request.stats_level is StatsLevel.NONE:
        return None
    stats = output.stats
    passes = () if totals_only else output.passes
    return spec.SpeculationStats(
        method=_method(request.speculation.method),
        source=spec.STATS_SOURCE_MEASURED,
        decode_passes=stats.decode_passes,
        spec_steps=stats.spec_steps,
        drafted_count=stats.drafted,
        accepted_count=stats.accepted,
        verified_node_count=stats.verified_nodes,
        emitted_count=stats.emitted,
        rejected_steps=stats.rejected_steps,
        accepted_length_histogram=stats.histogram,
        drafted_per_position=stats.drafted_at,
        accepted_per_position=stats.accepted_at,
        acceptance_rate=stats.acceptance_rate,
        node_yield=stats.node_yield,
        mean_acceptance_length=stats.acceptance_length,
        tokens_per_pass=stats.tokens_per_pass,
        rejection_frequency=stats.rejection_frequency,
        passes=[_pass(OUTPUT_INDEX, record) for record in passes],
        passes_truncated=output.passes_truncated,
    )


def _timings(clock: Clock, now: float) -> pb.Timings:
    return pb.Timings(
        queue=_span(clock.arrival, clock.started),
        prefill=_span(clock.started, clock.first_token),
        time_to_first_token=_span(clock.arrival, clock.first_token),
        decode=_span(clock.first_token, clock.last_token),
        total=_span(clock.arrival, now),
    )


def _span(start: float | None, end: float | None) -> Duration | None:
    if start is None or end is None:
        return None
    result = Duration()
    result.FromNanoseconds(round((end - start) * 1e9))
    return result
