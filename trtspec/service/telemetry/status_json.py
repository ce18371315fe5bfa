"""`/status.json`: the overview as the page shows it, for people and for scripts. Unknown is null, never 0."""

from __future__ import annotations

import time
from typing import Any

from trtspec import __version__
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import windows
from trtspec.service.telemetry.engine_watch import kv_usage
from trtspec.service.telemetry.exposition import CONFIG_ID_DIGITS
from trtspec.service.telemetry.history import SAMPLE_SECONDS, History, Stretch
from trtspec.service.telemetry.overview import Open, Overview
from trtspec.service.telemetry.registry import Snapshot

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_LATENCIES = {
    "first_token": names.FIRST_TOKEN,
    "token": names.TOKEN_GAP,
    "chunk": names.CHUNK_GAP,
    "request": names.E2E,
    "queue": names.QUEUE_TIME,
}


def status(overview: Overview) -> dict[str, Any]:
    """The whole document."""
    recent, opened = overview.history.stretch(), overview.opened
    return {
        "state": overview.state,
        "version": __version__,
        "uptime_seconds": round(time.monotonic() - overview.began, 1),
        "frontends": {"wanted": overview.options.frontends, "live": overview.totals.sources},
        "engine": _engine(opened) if opened else None,
        "now": _now(overview, opened, recent) if opened else None,
        "window_seconds": round(recent.seconds),
        "speculation": {"window": _speculation(recent.counted), "lifetime": _speculation(overview.history.lifetime)},
        "requests": {"window": _requests(recent.counted), "lifetime": _requests(overview.history.lifetime)},
        "latency": {name: _latency(recent.counted, family) for name, family in _LATENCIES.items()},
        "history": _history(overview.history),
        "rollout": None,
    }


def _engine(opened: Open) -> dict[str, Any]:
    info = opened.model.info
    return {
        "model": info.model,
        "config_id": info.engine_id[:CONFIG_ID_DIGITS],
        "engine_id": info.engine_id,
        "method": info.method.value,
        "backend": info.backend,
        "architecture": info.architecture,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "output_law": info.output_law.value,
        "max_draft_tokens": opened.model.default_draft_tokens,
        "max_batch_size": info.limits.max_batch_size,
        "max_context_tokens": info.limits.max_context_tokens,
    }


def _now(overview: Overview, opened: Open, recent: Stretch) -> dict[str, Any]:
    engine, rate = opened.watch.reading, overview.history.points
    return {
        "tokens_per_second": _rounded(rate[-1].tokens_per_second if rate else None),
        "requests_per_second": _rounded(recent.rate(names.REQUESTS)),
        "running": engine.running,
        "waiting": engine.waiting,
        "kv_usage": _rounded(kv_usage(engine)),
        "preemptions": opened.watch.preemptions,
        "restarts": opened.watch.restarts,
        "passes": opened.watch.passes,
    }


def _speculation(counted: Snapshot) -> dict[str, Any]:
    drafted = windows.by_number(counted, names.DRAFTED_AT, "position")
    accepted = windows.by_number(counted, names.ACCEPTED_AT, "position")
    return {
        "acceptance_length": _rounded(windows.acceptance_length(counted)),
        "acceptance_rate": _rounded(windows.ratio(counted, names.ACCEPTED, names.DRAFTED)),
        "tokens_per_pass": _rounded(windows.ratio(counted, names.EMITTED, names.PASSES)),
        "drafts": windows.amount(counted, names.DRAFTS),
        "passes": windows.amount(counted, names.PASSES),
        "per_position": [_rounded(a / d) if d else None for a, d in zip(accepted, drafted, strict=True)],
        "drafted_per_position": drafted,
        "accepted_length_histogram": windows.by_number(counted, names.STEPS, "accepted"),
    }


def _requests(counted: Snapshot) -> dict[str, Any]:
    codes = windows.by_label(counted, names.REQUESTS, "code")
    return {
        "total": sum(codes.values()),
        "codes": {code: count for code, count in codes.items() if count},
        "rejected": windows.amount(counted, names.REJECTIONS),
        "reasons": {
            reason: count for reason, count in windows.by_label(counted, names.ERRORS, "reason").items() if count
        },
    }


def _latency(counted: Snapshot, family: names.Family) -> dict[str, Any]:
    counts = windows.times(counted, family)
    found = {name: _rounded(windows.quantile(counts, family.buckets, share)) for name, share in _SHARES.items()}
    return {"count": sum(counts), **found}


def _history(history: History) -> dict[str, Any]:
    points = list(history.points)
    return {
        "step_seconds": SAMPLE_SECONDS,
        "tokens_per_second": [_rounded(point.tokens_per_second) for point in points],
        "acceptance_length": [_rounded(point.acceptance_length) for point in points],
        "running": [point.running for point in points],
        "waiting": [point.waiting for point in points],
        "kv_usage": [_rounded(point.kv_usage) for point in points],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
