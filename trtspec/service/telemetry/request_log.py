"""One JSON line for each request that ended, whatever its end. The fields are an interface: `scripts/docs/metrics.md`.

Prompts are in it only where the operator asks for them. What is not known is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.observing import Arrival, Clock, Started, Summary
from trtspec.service.requests import ParsedRequest
from trtspec.service.telemetry.line_writer import LineWriter
from trtspec.service.telemetry.trace_context import trace_id
from trtspec.types import PassRecord


class RequestLog:
    """Implements `Observer`."""

    def __init__(self, writer: LineWriter, with_prompts: bool) -> None:
        self._writer = writer
        self._with_prompts = with_prompts

    def arrived(self, arrival: Arrival) -> _Logged:
        return _Logged(self, arrival)

    def write(self, arrival: Arrival, summary: Summary) -> None:
        """Log a request that ended."""
        line = record(arrival, summary)
        if self._with_prompts and summary.request:
            line["prompt"] = _prompt(summary.request)
        self._writer.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


class _Logged:
    __slots__ = ("_arrival", "_log")

    def __init__(self, log: RequestLog, arrival: Arrival) -> None:
        self._log = log
        self._arrival = arrival

    def started(self, event: Started) -> None: ...

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None: ...

    def ended(self, summary: Summary) -> None:
        self._log.write(self._arrival, summary)


def record(arrival: Arrival, summary: Summary) -> dict[str, Any]:
    """The line, without prompts."""
    ended = datetime.fromtimestamp(time.time() - (time.monotonic() - summary.ended), timezone.utc)
    line = {
        "time": ended.isoformat(timespec="milliseconds"),
        "event": "request",
        "status": summary.status.name,
        "reason": summary.reason or None,
        "client": summary.caller.name if summary.caller else None,
        "peer": arrival.peer,
        "trace_id": trace_id(arrival.metadata),
        "message_bytes": arrival.message_bytes,
        **(_asked(summary.request) if summary.request else {}),
        "prompt_tokens": summary.prompt_tokens,
        "cached_prompt_tokens": summary.cached_tokens,
        "completion_tokens": sum(output.tokens for output in summary.outputs) if summary.outputs else None,
        "outputs": [{"finish_reason": end.reason.value, "tokens": end.tokens} for end in summary.outputs] or None,
        "timings": _known(_timings(summary.clock, summary.ended)),
        "speculative_decoding": _known(speculation(summary.stats)) if summary.stats.decode_passes else None,
        "derived": summary.derived if summary.stats.decode_passes else None,
    }
    return _known(line)


def speculation(stats: SpeculationStats) -> dict[str, Any]:
    """The numbers under the names that vLLM and AIPerf read."""
    return {
        "num_spec_steps": stats.spec_steps,
        "num_nonspec_steps": stats.decode_passes - stats.spec_steps,
        "num_draft_tokens": stats.drafted,
        "num_accepted_draft_tokens": stats.accepted,
        "num_verified_nodes": stats.verified_nodes,
        "num_emitted_tokens": stats.emitted,
        "mean_acceptance_length": _short(stats.acceptance_length),
        "draft_acceptance_rate": _short(stats.acceptance_rate),
        "tokens_per_pass": _short(stats.tokens_per_pass),
        "acceptance_histogram": list(stats.histogram),
        "accepted_per_position": list(stats.accepted_at),
        "drafted_per_position": list(stats.drafted_at),
    }


def _asked(request: ParsedRequest) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "tenant": request.tenant or None,
        "tags": dict(request.tags) or None,
        "priority": request.priority or None,
        "method": request.speculation.method.value,
        "max_draft_tokens": request.speculation.max_draft_tokens,
        "speculation_reason": request.speculation.reason or None,
    }


def _timings(clock: Clock, ended: float) -> dict[str, float | None]:
    first, last, started = clock.first_token, clock.last_token, clock.started
    return {
        "queue_ms": _milliseconds(clock.arrival, started),
        "time_to_first_token_ms": _milliseconds(clock.arrival, first),
        "prefill_ms": _milliseconds(started, first),
        "decode_ms": _milliseconds(first, last),
        "total_ms": _milliseconds(clock.arrival, ended),
    }


def _prompt(request: ParsedRequest) -> Any:
    if isinstance(request.prompt, str):
        return request.prompt
    return list(request.prompt) if isinstance(request.prompt, tuple) else asdict(request.prompt)


def _milliseconds(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) * 1000, 3)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
