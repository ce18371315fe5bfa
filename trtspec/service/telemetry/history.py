"""The last minutes of a server, a sample a second, so that a page that is opened late shows what led here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry import windows
from trtspec.service.telemetry.engine_watch import kv_usage
from trtspec.service.telemetry.registry import Snapshot
from trtspec.types import EngineStats

SAMPLE_SECONDS = 1.0
WINDOW_SECONDS = 60
"""What numbers of now are taken over."""
RATE_SECONDS = 5
"""And rates on charts: requests are counted once a second each."""
POINTS = 300
SAMPLED = frozenset(
    family.name
    for family in (
        *(names.REQUESTS, names.REJECTIONS, names.ERRORS, names.GENERATION_TOKENS, names.PROMPT_TOKENS),
        *(names.PASSES, names.DRAFTS, names.DRAFTED, names.ACCEPTED, names.EMITTED, names.REJECTED),
        *(names.STEPS, names.ACCEPTED_AT, names.DRAFTED_AT),
        *(names.FIRST_TOKEN, names.TOKEN_GAP, names.CHUNK_GAP, names.E2E, names.QUEUE_TIME),
    )
)
"""Families that samples have."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals at an instant of `time.monotonic()`."""

    at: float
    totals: Snapshot
    engine: EngineStats


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened between two samples."""

    seconds: float = 0.0
    counted: Snapshot = field(default_factory=dict)

    def rate(self, family: names.Family) -> float | None:
        """A counter's rise in a second."""
        return windows.amount(self.counted, family) / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class Point:
    """A second on the charts."""

    tokens_per_second: float | None
    acceptance_length: float | None
    running: int
    waiting: int
    kv_usage: float | None


class History:
    """Samples for windows, points for charts."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=WINDOW_SECONDS + 1)
        self.points: deque[Point] = deque(maxlen=POINTS)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        recent = self.stretch(RATE_SECONDS)
        self.points.append(
            Point(
                recent.rate(names.GENERATION_TOKENS),
                windows.acceptance_length(recent.counted),
                sample.engine.running,
                sample.engine.waiting,
                kv_usage(sample.engine),
            )
        )

    def stretch(self, samples: int = WINDOW_SECONDS) -> Stretch:
        """From so many samples ago, or the oldest one, to now."""
        if not self._samples:
            return Stretch()
        before, after = self._samples[-min(samples + 1, len(self._samples))], self._samples[-1]
        return Stretch(after.at - before.at, windows.between(before.totals, after.totals))

    @property
    def lifetime(self) -> Snapshot:
        return self._samples[-1].totals if self._samples else {}
