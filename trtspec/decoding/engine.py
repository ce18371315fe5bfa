"""An engine: scheduler, proposer and runner, turned by whoever owns the thread.

It knows nothing of threads, processes or clocks beyond the time it is told.
"""

from __future__ import annotations

from typing import NamedTuple

from trtspec.decoding.acceptance import Acceptance, exact
from trtspec.decoding.checks import check_request
from trtspec.decoding.edits import Editor
from trtspec.decoding.guiding import check_open
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.plan import Runner, StepPlan
from trtspec.decoding.proposer import Proposer
from trtspec.decoding.scheduler import Scheduler
from trtspec.decoding.step import run_pass
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineEvent, EngineStats, Limits, Request


class Begun(NamedTuple):
    """The first half of a turn."""

    plan: StepPlan | None
    """None where there is nothing to run."""
    events: tuple[EngineEvent, ...]
    """What is known before the pass."""


class Engine:
    """In-flight batching over one model. Not thread safe: one thread submits, cancels, begins and finishes passes."""

    def __init__(
        self,
        runner: Runner,
        proposer: Proposer,
        kv_cache: KVCache,
        limits: Limits,
        acceptance: Acceptance = exact,
    ) -> None:
        self._runner = runner
        self._proposer = proposer
        self._acceptance = acceptance
        self._editor = Editor()
        self._limits = limits
        self._scheduler = Scheduler(kv_cache, proposer.needs, limits.max_batch_size, limits.max_pass_tokens)

    @property
    def idle(self) -> bool:
        """No request lives, so a turn would do nothing."""
        return self._scheduler.idle

    def submit(self, request: Request) -> None:
        """Queue a request. Raises a `RequestError` for one that could never run."""
        check_request(request, self._limits)
        check_open(request.guide)
        self._scheduler.add(request)

    def cancel(self, request_id: str) -> tuple[EngineEvent, ...]:
        """End a request between passes; its blocks are free at once."""
        return self._scheduler.cancel(request_id)

    def limit(self, limit: SpeculationLimit) -> None:
        """Bound the drafts of all requests, from the next pass on."""
        self._scheduler.limit = limit

    def begin(self, now: float) -> Begun:
        """End what is overdue, admit what fits, and plan the next pass. A plan must be finished before the next."""
        expired = self._scheduler.expire(now)
        plan, started = self._scheduler.plan()
        return Begun(plan, expired + started)

    def finish(self, plan: StepPlan) -> tuple[EngineEvent, ...]:
        """Run the pass and settle it; returns what it made known."""
        result = run_pass(plan, self._proposer, self._runner, self._editor, self._acceptance)
        return self._scheduler.commit(plan, result)

    def stats(self) -> EngineStats:
        kv_cache = self._scheduler.kv_cache
        return EngineStats(
            passes=self._scheduler.passes,
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            free_blocks=kv_cache.free_blocks,
            total_blocks=kv_cache.total_blocks,
            preemptions=self._scheduler.preemptions,
            limit=self._scheduler.limit,
        )

    def check(self) -> None:
        """Assert the integrity of the KV bookkeeping."""
        self._scheduler.kv_cache.check()
