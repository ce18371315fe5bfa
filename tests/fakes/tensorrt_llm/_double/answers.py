"""From an output's state to a `Result`, as llmRequest.cpp makes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tensorrt_llm._double.engine_folder import EngineFolder
from tensorrt_llm._double.sequence import CANCELLED, TIMED_OUT, Sequence


def result_of(sequence: Sequence, new: list[int], iteration: int, folder: EngineFolder) -> Any:
    """What one response tells."""
    from tensorrt_llm.bindings import executor as trtllm

    group, request = sequence.group, sequence.group.request
    empty = sequence.reason in (CANCELLED, TIMED_OUT)
    result = trtllm.Result()
    result.is_final = group.finished
    result.is_sequence_final = sequence.finished
    result.sequence_index = sequence.index
    result.output_token_ids = [[] if empty else _told(sequence, new)]
    result.finish_reasons = [trtllm.FinishReason[sequence.reason]]
    result.decoding_iter = sequence.iterations
    made = 0 if empty else len(sequence.tokens)
    result.avg_decoded_tokens_per_iter = made / sequence.iterations if sequence.iterations else 0.0
    if request.output_config.return_log_probs:
        result.log_probs = [list(sequence.logprobs)]
        result.cum_log_probs = [float(sum(sequence.logprobs))]
    if request.output_config.return_perf_metrics:
        result.request_perf_metrics = _metrics(trtllm, sequence, iteration)
    result.additional_outputs = [] if empty else _additional(trtllm, sequence, folder)
    return result


def _told(sequence: Sequence, new: list[int]) -> list[int]:
    """Streaming never tells the prompt; else it comes first unless it is excluded."""
    request = sequence.group.request
    if request.streaming:
        return list(sequence.tokens) if request.return_all_generated_tokens else new
    prompt = [] if request.output_config.exclude_input_from_output else list(request.input_token_ids)
    return prompt + sequence.tokens


def _metrics(trtllm: Any, sequence: Sequence, iteration: int) -> Any:
    group, metrics = sequence.group, trtllm.RequestPerfMetrics()
    timing, cache = metrics.timing_metrics, metrics.kv_cache_metrics
    timing.arrival_time = timedelta(seconds=group.arrival)
    timing.first_scheduled_time = timedelta(seconds=group.scheduled)
    timing.first_token_time = timedelta(seconds=group.first_token)
    timing.last_token_time = timedelta(seconds=group.last_token)
    cache.num_total_allocated_blocks = group.new_blocks + group.reused_blocks
    cache.num_new_allocated_blocks = group.new_blocks
    cache.num_reused_blocks = group.reused_blocks
    cache.num_missed_blocks = group.missed_blocks
    cache.kv_cache_hit_rate = group.reused_blocks / max(group.reused_blocks + group.missed_blocks, 1)
    metrics.first_iter, metrics.iter = group.first_iteration, iteration
    metrics.last_iter = iteration if group.finished else None
    speculation = metrics.speculative_decoding
    speculation.total_draft_tokens = sequence.drafted
    speculation.total_accepted_draft_tokens = sequence.accepted
    speculation.acceptance_rate = sequence.accepted / sequence.drafted if sequence.drafted else 0.0
    return metrics


def _additional(trtllm: Any, sequence: Sequence, folder: EngineFolder) -> list[Any]:
    """All rows so far, in every response."""
    group = sequence.group
    wanted = group.request.output_config.additional_model_outputs or ()
    if not wanted:
        return []
    from tensorrt_llm._double import additional

    prompt, count = list(group.request.input_token_ids), len(sequence.tokens)
    outputs = []
    for item in wanted:
        rows = additional.rows_of(folder, item.name, prompt + sequence.tokens)
        if item.gather_context:
            context = additional.context_rows(rows, len(prompt), group.reused_tokens)
            outputs.append(trtllm.AdditionalOutput(f"context_{item.name}", context))
        generated = additional.generation_rows(rows, len(prompt), count, sequence.asked.max_tokens)
        outputs.append(trtllm.AdditionalOutput(f"generation_{item.name}", generated))
    return outputs
