"""Core values to response protos; the only file that writes `GenerateResponse` and `GetModelInfoResponse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from trtspec import __version__
from trtspec.capabilities import Support
from trtspec.service.assemble import Delta, OutputAssembler
from trtspec.service.model import ServedModel
from trtspec.service.observing import Clock
from trtspec.service.requests import AppliedSpeculation, ParsedRequest, StatsLevel
from trtspec.service.statistics import decode_pass, first_passes, method_name, passes_truncated, speculation_stats
from trtspec.types import FinishReason, OutputLaw, SamplingParams, TokenLogprob, TokenLogprobs
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec

_SUPPORT = {
    Support.HONOURED: pb.SUPPORT_HONOURED,
    Support.REFUSED: pb.SUPPORT_REFUSED,
    Support.NOT_LOSSLESS: pb.SUPPORT_NOT_LOSSLESS,
}
MAX_PARTIAL_OUTPUTS = 64
"""Trailing metadata have room for the ends of so many outputs, beside totals over all."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What there is to say of a request at its end."""

    request: ParsedRequest
    prompt_tokens: int
    cached_tokens: int | None
    """Tokens of the prompt from the prefix cache; None where the engine does not tell."""
    prompt_logprobs: tuple[TokenLogprobs, ...]
    outputs: Sequence[OutputAssembler]
    clock: Clock
    derived: bool = False
    """Its pass records were worked out from what the engine answered."""


def accepted(request: ParsedRequest, model: ServedModel, prompt_tokens: int) -> pb.GenerateResponse:
    """The first message."""
    return pb.GenerateResponse(
        accepted=pb.Accepted(
            request_id=request.request_id,
            seed=request.seed,
            model=model.info.model,
            engine_id=model.info.engine_id,
            speculation=_applied(request.speculation, unverified_target=model.info.unverified_target),
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
            passes=[decode_pass(output_index, record) for record in delta.passes],
            logprobs=_logprobs(delta.logprobs),
        )
    )


def finished(answer: Answer, now: float) -> pb.Finished:
    """The last message. Slow with many log-probabilities: call it off the event loop."""
    result = _totals(answer, now)
    result.outputs.extend(_output(index, output) for index, output in enumerate(answer.outputs))
    result.prompt_logprobs.extend(_logprobs(answer.prompt_logprobs))
    if result.HasField("speculation"):
        result.speculation.passes.extend(first_passes(answer.outputs))
        result.speculation.passes_truncated = passes_truncated(answer.outputs)
    return result


def partial(answer: Answer, now: float) -> pb.Finished:
    """What trailing metadata tell of a request that failed: small, whatever it asked for."""
    result = _totals(answer, now)
    result.outputs.extend(_end(index, output) for index, output in enumerate(answer.outputs[:MAX_PARTIAL_OUTPUTS]))
    return result


def _totals(answer: Answer, now: float) -> pb.Finished:
    request = answer.request
    told = request.stats_level is not StatsLevel.NONE
    completion_tokens = sum(output.count for output in answer.outputs)
    stats = speculation_stats(request.speculation.method, answer.outputs, derived=answer.derived)
    return pb.Finished(
        usage=pb.Usage(
            prompt_token_count=answer.prompt_tokens,
            completion_token_count=completion_tokens,
            total_token_count=answer.prompt_tokens + completion_tokens,
            cached_prompt_token_count=answer.cached_tokens,
        ),
        timings=_timings(answer.clock, now),
        speculation=stats if told else None,
    )


def model_info(model: ServedModel, *, queued: int, request_bytes: int, has_chat: bool) -> pb.GetModelInfoResponse:
    """What is served, with limits, capabilities and defaults."""
    info, limits = model.info, model.info.limits
    drafts = model.default_draft_tokens
    return pb.GetModelInfoResponse(
        model=info.model,
        engine_id=info.engine_id,
        backend=info.backend,
        method=method_name(info.method),
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
            max_outputs=model.max_outputs,
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


def _law(value: OutputLaw) -> str:
    return f"OUTPUT_LAW_{value.name}"


def _reason(value: FinishReason) -> str:
    return f"FINISH_REASON_{value.name}"


def _applied(value: AppliedSpeculation, *, unverified_target: bool) -> spec.AppliedSpeculation:
    return spec.AppliedSpeculation(
        method=method_name(value.method),
        max_draft_tokens=value.max_draft_tokens,
        reason=value.reason,
        unverified_target=unverified_target,
    )


def _sampling(value: SamplingParams) -> pb.SamplingOptions:
    return pb.SamplingOptions(
        temperature=value.temperature,
        top_k=value.top_k,
        top_p=value.top_p,
        min_p=value.min_p,
        repetition_penalty=value.repetition_penalty,
        presence_penalty=value.presence_penalty,
        frequency_penalty=value.frequency_penalty,
    )


def _logprobs(positions: Sequence[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(chosen=_logprob(position.chosen), top=[_logprob(token) for token in position.top])
        for position in positions
    ]


def _logprob(value: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(token_id=value.token_id, logprob=value.logprob, rank=value.rank)


def _output(index: int, output: OutputAssembler) -> pb.Output:
    result = _end(index, output)
    if output.end and output.end.stop_string is not None:
        result.stop_string = output.end.stop_string
    if output.keeps_output:
        result.text = output.text
        result.token_ids.extend(output.token_ids)
        result.logprobs.extend(_logprobs(output.logprobs))
    return result


def _end(index: int, output: OutputAssembler) -> pb.Output:
    """How an output ended, without texts."""
    end = output.end
    return pb.Output(
        output_index=index,
        finish_reason=_reason(end.reason if end else FinishReason.ERROR),
        stop_token_id=end.stop_id if end else None,
        completion_token_count=output.count,
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
