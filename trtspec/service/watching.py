"""An executor before another one that knows which requests live, and what became of all others.

It stands in the process that holds the engine, so that it sees the requests of every front-end. It counts what passes
by and changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import count

from trtspec.decoding.stats import SpeculationStats
from trtspec.errors import RequestError
from trtspec.executors.around import ExecutorAround
from trtspec.executors.base import Executor
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import FinishReason, PassRecord, Request, RequestEvent, Started

Shape = tuple[tuple[int, ...], int, int, bool, bool]
"""What a record has beside its index, in the order of its fields."""


@dataclass(slots=True)
class Tally:
    """Records of passes, counted by what they are: cheap for every pass, added up when somebody asks."""

    _counts: Counter[Shape] = field(default_factory=Counter)

    def add(self, passes: Sequence[PassRecord]) -> None:
        for item in passes:
            self._counts[item.nodes_by_depth, item.accepted, item.emitted, item.prefill, item.cut] += 1

    @property
    def stats(self) -> SpeculationStats:
        shapes = self._counts.items()
        return sum(
            (SpeculationStats.of([PassRecord(0, *shape)]) * times for shape, times in shapes), SpeculationStats()
        )


@dataclass(slots=True, eq=False)
class Watched:
    """A request that lives."""

    request: Request
    serial: int
    """Counts requests."""
    arrival: float
    """On `time.time()`."""
    since: float
    """The same on `time.monotonic()`."""
    tokens: list[int]
    """Of each output so far."""
    started: bool = False
    depth: int | None = None
    """Of its drafts when it started, where that was less than it asked for."""
    unfinished: int = 0
    cancelled: bool = False
    """By an operator."""
    tally: Tally = field(default_factory=Tally)

    def take(self, event: RequestEvent) -> None:
        """Note what happened."""
        if isinstance(event, Started):
            self.started, self.depth = True, event.max_draft_tokens
            return
        self.tokens[event.output_index] += len(event.token_ids)
        self.tally.add(event.passes)
        if event.finish:
            self.unfinished -= 1
            self.cancelled |= event.finish.reason is FinishReason.CANCELLED

    def max_draft_tokens(self, limit: SpeculationLimit) -> int:
        """Deepest draft under the limit in force; one that began without drafts has none to its end."""
        return 0 if self.depth == 0 else limit.cap(self.request.max_draft_tokens)


@dataclass(slots=True)
class Ends:
    """How requests ended."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    closed: int = 0


class WatchedExecutor(ExecutorAround):
    """An executor whose requests can be listed."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.ends = Ends()
        self._live: dict[int, Watched] = {}
        self._serials = count(1)
        self._ended = SpeculationStats()

    def live(self) -> Sequence[Watched]:
        """The requests that live, oldest first."""
        return list(self._live.values())

    def totals(self) -> SpeculationStats:
        """Over all requests, live ones included."""
        return sum((item.tally.stats for item in self._live.values()), self._ended)

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        watched = Watched(request, next(self._serials), time.time(), time.monotonic(), [0] * request.n)
        watched.unfinished = request.n
        self._live[watched.serial] = watched
        failed = False
        events = super().generate(request)
        try:
            async for event in events:
                watched.take(event)
                yield event
        except RequestError:
            failed = True
            raise
        finally:
            await events.aclose()
            self._end(watched, failed)

    def _end(self, watched: Watched, failed: bool) -> None:
        del self._live[watched.serial]
        self._ended += watched.tally.stats
        if failed:
            self.ends.failed += 1
        elif watched.unfinished:
            self.ends.closed += 1
        elif watched.cancelled:
            self.ends.cancelled += 1
        else:
            self.ends.finished += 1
