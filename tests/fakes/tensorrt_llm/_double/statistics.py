"""Statistics of a pass as the executor of compiled engines tells them."""

from __future__ import annotations

import datetime
from typing import Any

from tensorrt_llm._double.passes import Pass
from tensorrt_llm._double.reuse import Reuse

from trtspec.types import EngineStats


def iteration_stats(facts: Pass, engine: EngineStats, reuse: Reuse, capacity: int) -> Any:
    """One `IterationStats`. Statistics of speculation stay None: this flow never fills them."""
    from tensorrt_llm.bindings import executor as trtllm

    stats = trtllm.IterationStats()
    stats.timestamp = datetime.datetime.now().strftime("%m-%d-%Y %H:%M:%S.%f")
    stats.iter = facts.number
    stats.iter_latency_ms = facts.latency * 1e3
    stats.new_active_requests_queue_latency_ms = facts.queue_latency * 1e3
    stats.num_new_active_requests = facts.joined
    stats.num_active_requests = facts.active
    stats.num_queued_requests = facts.queued
    stats.num_completed_requests = facts.completed
    stats.max_num_active_requests = capacity
    stats.kv_cache_stats = _kv_cache(trtllm.KvCacheStats(), engine, reuse)
    stats.inflight_batching_stats = _batch(trtllm.InflightBatchingStats(), facts)
    return stats


def _kv_cache(stats: Any, engine: EngineStats, reuse: Reuse) -> Any:
    stats.max_num_blocks = engine.total_blocks
    stats.free_num_blocks = engine.free_blocks
    stats.used_num_blocks = engine.total_blocks - engine.free_blocks
    stats.tokens_per_block = reuse.block_tokens
    stats.alloc_total_blocks = reuse.allocated
    stats.alloc_new_blocks = reuse.allocated - reuse.reused
    stats.reused_blocks = reuse.reused
    stats.missed_blocks = reuse.missed
    stats.cache_hit_rate = reuse.reused / max(reuse.reused + reuse.missed, 1)
    return stats


def _batch(stats: Any, facts: Pass) -> Any:
    stats.num_context_requests = facts.context_rows
    stats.num_gen_requests = len(facts.decoded)
    stats.num_scheduled_requests = facts.context_rows + len(facts.decoded)
    stats.num_paused_requests = 0
    stats.num_ctx_tokens = facts.context_tokens
    emitted = sum(record.emitted for record in facts.decoded)
    stats.avg_num_decoded_tokens_per_iter = emitted / max(len(facts.decoded), 1)
    return stats


def spec_decoding(facts: Pass) -> dict[str, Any] | None:
    """Statistics of speculation as the PyTorch flow tells them; None where nothing was drafted."""
    drafting = facts.drafting
    if not drafting:
        return None
    accepted = sum(record.emitted - 1 for record in drafting)
    return {
        "numDraftTokens": sum(record.drafted for record in drafting),
        "numAcceptedTokens": accepted,
        "numRequestsWithDraftTokens": len(drafting),
        "acceptanceLength": (accepted + len(drafting)) / len(drafting),
        "iterLatencyMS": 0.0,
        "draftOverhead": 0.0,
    }
