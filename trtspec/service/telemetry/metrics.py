"""Counts requests for Prometheus: what is sure at once, the rest when a request ends.

The newest tokens of a request are counted only when others follow or the request ends: a stop string may cut them, and
a counter cannot take anything back. So the sum over ended requests is exactly what their answers told.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.observing import Arrival, Clock, Started, Summary
from trtspec.service.requests import ParsedRequest
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry.passes import Gathered, minus
from trtspec.service.telemetry.registry import Registry
from trtspec.service.telemetry.slices import MOST_TASKS, TASK_TAG, FirstFew, length, sampling
from trtspec.service.telemetry.speculation import SpeculationCounters
from trtspec.types import PassRecord

FLUSH_SECONDS = 1.0
"""Passes of a request that goes on are counted this often."""
_NO_ROLLOUT = ""
"""The arm of requests while there is only one."""
_TURNED_AWAY = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)
_MOST_REASONS = 32


class Metrics:
    """Implements `Observer`: counts into a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.tasks = FirstFew(MOST_TASKS)
        self.reasons = FirstFew(_MOST_REASONS)
        self._arms: dict[str, Arm] = {}

    def arrived(self, arrival: Arrival) -> Followed:
        return Followed(self.arm(_NO_ROLLOUT), arrival.at)

    def arm(self, name: str) -> Arm:
        """The series of an arm."""
        if name not in self._arms:
            self._arms[name] = Arm(self, name)
        return self._arms[name]


class Arm:
    """Series of one arm, made beforehand where a request needs them often."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        registry = metrics.registry
        self.metrics = metrics
        self.name = name
        self.speculation = SpeculationCounters(registry, name)
        self.prompt_tokens = registry.counter(names.PROMPT_TOKENS, name)
        self.cached_tokens = registry.counter(names.CACHED_TOKENS, name)
        self.tokens = registry.counter(names.GENERATION_TOKENS, name)
        self.first_token = registry.histogram(names.FIRST_TOKEN, name)
        self.token_gap = registry.histogram(names.TOKEN_GAP, name)
        self.chunk_gap = registry.histogram(names.CHUNK_GAP, name)
        self.queue_time = registry.histogram(names.QUEUE_TIME, name)

    def count(self, tokens: int, stats: SpeculationStats) -> None:
        self.tokens.add(tokens)
        self.speculation.add(stats)

    def started(self, event: Started, waited: float) -> None:
        """A request reached the engine."""
        self.queue_time.observe(waited)
        self.prompt_tokens.add(event.prompt_tokens)
        self.cached_tokens.add(event.cached_tokens or 0)
        applied = event.request.speculation
        mode = "spec" if applied.max_draft_tokens else "fallback" if applied.reason else "baseline"
        self.metrics.registry.counter(names.MODES, self.name, mode, self.metrics.reasons.of(applied.reason)).add()

    def ended(self, summary: Summary) -> None:
        """A request ended, however."""
        registry, reason = self.metrics.registry, self.metrics.reasons.of(summary.reason)
        registry.counter(names.REQUESTS, self.name, summary.status.name).add()
        if summary.reason:
            registry.counter(names.ERRORS, self.name, reason).add()
        if summary.clock.started is None and summary.status in _TURNED_AWAY:
            registry.counter(names.REJECTIONS, self.name, reason).add()
        if summary.status is grpc.StatusCode.OK and summary.outputs and summary.request:
            registry.counter(names.SUCCESS, self.name, summary.outputs[0].reason.value).add()
            self._times(summary)
            self._slice(summary, summary.request)

    def _times(self, summary: Summary) -> None:
        clock, registry = summary.clock, self.metrics.registry
        registry.histogram(names.E2E, self.name).observe(summary.ended - clock.arrival)
        if clock.started is None or clock.first_token is None or clock.last_token is None:
            return
        decode = clock.last_token - clock.first_token
        registry.histogram(names.PREFILL_TIME, self.name).observe(clock.first_token - clock.started)
        registry.histogram(names.DECODE_TIME, self.name).observe(decode)
        registry.histogram(names.INFERENCE_TIME, self.name).observe(clock.last_token - clock.started)
        # Outputs of one request advance together, so the longest one took all the time.
        later = max(output.tokens for output in summary.outputs) - 1
        if later > 0:
            registry.histogram(names.REQUEST_TOKEN_TIME, self.name).observe(decode / later)

    def _slice(self, summary: Summary, request: ParsedRequest) -> None:
        tokens = sum(output.tokens for output in summary.outputs)
        task = self.metrics.tasks.of(request.tags.get(TASK_TAG, ""))
        labels = (self.name, length(summary.prompt_tokens or 0), length(tokens), task, sampling(request))
        for family, amount in (
            (names.SLICE_REQUESTS, 1),
            (names.SLICE_TOKENS, tokens),
            (names.SLICE_SECONDS, _decode_seconds(summary.clock)),
            (names.SLICE_DRAFTS, summary.stats.spec_steps),
            (names.SLICE_DRAFTED, summary.stats.drafted),
            (names.SLICE_ACCEPTED, summary.stats.accepted),
        ):
            self.metrics.registry.counter(family, *labels).add(amount)


class Followed:
    """Implements `RequestObserver`."""

    __slots__ = (
        "_arm",
        "_arrival",
        "_due",
        "_gathered",
        "_held",
        "_held_tokens",
        "_last",
        "_single",
        "_told",
        "_tokens",
    )

    def __init__(self, arm: Arm, arrival: float) -> None:
        self._arm = arm
        self._arrival = arrival
        self._single = True
        self._last: float | None = None
        self._held: Sequence[PassRecord] = ()
        """The newest passes: not counted yet."""
        self._held_tokens = 0
        self._gathered = Gathered()
        self._tokens = 0
        """Of what is gathered."""
        self._told = (0, SpeculationStats())
        """Tokens and numbers that the counters have."""
        self._due = 0.0

    def started(self, event: Started) -> None:
        # Which output tokens are of is not told: of several, gaps are not known, and all is counted at the end.
        self._single = event.request.n == 1
        self._arm.started(event, time.monotonic() - self._arrival)

    def emitted(self, tokens: int, passes: Sequence[PassRecord], at: float) -> None:
        last, self._last = self._last, at
        if last is None:
            self._arm.first_token.observe(at - self._arrival)
            self._due = at + FLUSH_SECONDS
        elif self._single:
            gap = at - last
            self._arm.chunk_gap.observe(gap)
            self._arm.token_gap.observe(gap / tokens, tokens)
        if self._single:
            self._gathered.add(self._held)
            self._tokens += self._held_tokens
            self._held, self._held_tokens = passes, tokens
            if at >= self._due:
                self._due = at + FLUSH_SECONDS
                self._flush(self._tokens, self._gathered.take())

    def ended(self, summary: Summary) -> None:
        tokens, stats = self._told
        self._flush(sum(output.tokens for output in summary.outputs) - tokens, minus(summary.stats, stats))
        self._arm.ended(summary)

    def _flush(self, tokens: int, stats: SpeculationStats) -> None:
        self._arm.count(tokens, stats)
        self._told = (self._told[0] + tokens, self._told[1] + stats)
        self._tokens = 0


def _decode_seconds(clock: Clock) -> float:
    return clock.last_token - clock.first_token if clock.first_token and clock.last_token else 0.0
