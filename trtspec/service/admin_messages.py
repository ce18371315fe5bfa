"""Core values to the messages of the Admin service."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.model import ServedModel
from trtspec.service.requests import names_in
from trtspec.service.statistics import stats_message
from trtspec.service.watching import Ends, Watched
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineStats, Health, Method
from trtspec.v1 import admin_pb2 as pb
from trtspec.v1 import speculation_pb2 as spec


def serving_state(health: Health, *, draining: bool) -> str:
    """Whether requests are answered. An engine that is lost is told before anything else."""
    if draining and health is Health.SERVING:
        return "SERVING_STATE_DRAINING"
    return f"SERVING_STATE_{health.name}"


def engine_state(stats: EngineStats) -> pb.EngineState:
    """A reading of the engine."""
    return pb.EngineState(
        passes=stats.passes,
        running_count=stats.running,
        waiting_count=stats.waiting,
        free_block_count=stats.free_blocks,
        total_block_count=stats.total_blocks,
        preemption_count=stats.preemptions,
    )


def request_counts(ends: Ends) -> pb.RequestCounts:
    """How requests ended."""
    return pb.RequestCounts(
        finished_count=ends.finished,
        cancelled_count=ends.cancelled,
        failed_count=ends.failed,
        closed_count=ends.closed,
    )


def totals(model: ServedModel, stats: SpeculationStats) -> spec.SpeculationStats:
    """Statistics over many requests."""
    return stats_message(model.info.method, stats, derived=model.info.derived_statistics)


def setting(model: ServedModel, limit: SpeculationLimit) -> pb.SpeculationSetting:
    """Speculation as it is set."""
    return pb.SpeculationSetting(
        max_draft_tokens=limit.max_depth,
        engine_max_draft_tokens=model.info.limits.max_draft_tokens,
        default_draft_tokens=limit.cap(model.default_draft_tokens),
    )


def live_request(item: Watched, model: ServedModel, limit: SpeculationLimit, now: float) -> pb.LiveRequest:
    """A live request, without anything of its text."""
    request, stats = item.request, item.tally.stats
    depth = item.max_draft_tokens(limit)
    method = model.info.method if depth or stats.spec_steps else Method.NONE
    tenant, client = names_in(request.tenant)
    created = Timestamp()
    created.FromNanoseconds(round(item.arrival * 1e9))
    return pb.LiveRequest(
        request_id=request.request_id,
        client=client,
        tenant=tenant,
        priority=request.priority,
        state=pb.REQUEST_STATE_RUNNING if item.started else pb.REQUEST_STATE_QUEUED,
        create_time=created,
        age=duration(now - item.since),
        prompt_token_count=len(request.prompt),
        max_tokens=request.max_tokens,
        output_token_counts=item.tokens,
        asked_draft_tokens=request.max_draft_tokens,
        max_draft_tokens=depth,
        speculation=stats_message(method, stats, derived=model.info.derived_statistics),
    )


def duration(seconds: float) -> Duration:
    """Seconds as a proto."""
    result = Duration()
    result.FromNanoseconds(round(seconds * 1e9))
    return result
