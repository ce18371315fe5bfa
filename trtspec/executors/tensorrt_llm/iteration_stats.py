"""TensorRT-LLM's iteration statistics as ours. They are drained often: the runtime drops the oldest without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trtspec.types import EngineStats


def read_stats(iterations: Sequence[Any], before: EngineStats) -> EngineStats:
    """The state after these iterations, which are those since the last reading."""
    if not iterations:
        return before
    last = iterations[-1]
    paused = sum(
        item.inflight_batching_stats.num_paused_requests for item in iterations if item.inflight_batching_stats
    )
    pool = last.kv_cache_stats
    found = replace(
        before,
        passes=last.iter,
        running=last.num_active_requests,
        waiting=last.num_queued_requests,
        preemptions=before.preemptions + paused,
    )
    if pool is None:
        return found
    return replace(found, free_blocks=pool.free_num_blocks, total_blocks=pool.max_num_blocks)


def idle(stats: EngineStats) -> EngineStats:
    """The same engine once nothing is in it. No iteration tells of that: the last one was of what ended with it, and a
    block that is kept for prompts to come counts as free.
    """
    return replace(stats, running=0, waiting=0, free_blocks=stats.total_blocks)
