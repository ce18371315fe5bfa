"""In-flight batching: who takes part in the next pass, and what a pass changes.

Sequences join and leave between passes. `plan` reserves, `commit` settles; nothing else changes shared state.
Order is priority, then arrival. Prefill runs in chunks beside decoding. When blocks run short, drafts shrink first,
then the last sequence in order gives its blocks back and is computed again later (preemption by recompute).
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from trtspec.decoding.draft import Draft, nodes_by_depth
from trtspec.decoding.kv_cache import KVCache, SlotCopy
from trtspec.decoding.plan import PlanRow, StepPlan
from trtspec.decoding.proposer import Needs
from trtspec.decoding.sampling import NO_TOKEN
from trtspec.decoding.sequence import Sequence
from trtspec.decoding.verify import Outcome
from trtspec.errors import DeadlineExceeded, DuplicateRequest, EngineFault
from trtspec.types import (
    EngineEvent,
    Failed,
    Finish,
    FinishReason,
    PassRecord,
    Request,
    Started,
    StepOutput,
)


class _Feed(NamedTuple):
    """Known tokens that a sequence gets into the pass being planned."""

    sequence: Sequence
    fed: int


class Scheduler:
    """Owns the sequences and the KV bookkeeping of one engine. A pass must hold a token of each sequence at least."""

    def __init__(self, kv_cache: KVCache, needs: Needs, max_batch_size: int, max_pass_tokens: int) -> None:
        self.kv_cache = kv_cache
        self.preemptions = 0
        self.passes = 0
        self._needs = needs
        self._max_batch_size = max_batch_size
        self._max_pass_tokens = max_pass_tokens
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._by_request: dict[str, Sequence] = {}
        self._arrivals = 0
        self._copies: list[SlotCopy] = []
        self._released: list[int] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._by_request

    def add(self, request: Request) -> None:
        """Queue a request; raises `DuplicateRequest` while another with its id lives."""
        if request.request_id in self._by_request:
            raise DuplicateRequest(f"request_id {request.request_id!r} is in use by a live request")
        sequence = Sequence(self._arrivals, request, tokens=list(request.prompt))
        self._arrivals += 1
        self._by_request[request.request_id] = sequence
        bisect.insort(self._waiting, sequence, key=lambda item: item.order)

    def cancel(self, request_id: str) -> tuple[EngineEvent, ...]:
        """End a request now; unknown ids, such as one that just ended, are no error."""
        sequence = self._by_request.get(request_id)
        return (self._end(sequence, FinishReason.CANCELLED),) if sequence else ()

    def expire(self, now: float) -> tuple[EngineEvent, ...]:
        """End what is past its deadline: with DEADLINE once accepted, with an error if still queued."""
        overdue = [sequence for sequence in self._by_request.values() if sequence.overdue(now)]
        return tuple(self._end(sequence, FinishReason.DEADLINE) for sequence in overdue)

    def plan(self) -> tuple[StepPlan | None, tuple[EngineEvent, ...]]:
        """The next pass with its memory reserved, and `Started` for who joins; None where there is nothing to do.

        Known tokens come first, those of waiting sequences included; drafts get what is left.
        """
        allowed = self._allowed_nodes()
        budget = self._max_pass_tokens - sum(allowed.values())
        feeds = self._feed_running(budget)
        started = self._admit(budget - sum(feed.fed for feed in feeds), feeds)
        if not feeds:
            return None, started
        rows = tuple(self._row(feed, allowed.get(feed.sequence.sequence_id, 0)) for feed in feeds)
        plan = StepPlan(self.passes, rows, tuple(self._copies), tuple(self._released))
        self.passes += 1
        self._copies.clear()
        self._released.clear()
        return plan, started

    def commit(self, plan: StepPlan, draft: Draft, outcome: Outcome) -> tuple[EngineEvent, ...]:
        """Settle a pass: keep accepted positions, end outputs, and tell what is new."""
        by_id = {sequence.sequence_id: sequence for sequence in self._running}
        columns = zip(
            plan.rows,
            draft.parents.tolist(),
            draft.counts.tolist(),
            outcome.path.tolist(),
            outcome.accepted.tolist(),
            outcome.emitted.tolist(),
            strict=True,
        )
        events: list[EngineEvent] = []
        for row, parents, count, path, accepted, emitted in columns:
            sequence = by_id[row.sequence_id]
            self._copies += self.kv_cache.commit(row.sequence_id, row.fed, path[:accepted])
            if row.samples:
                self.kv_cache.trim(row.sequence_id)
                nodes = nodes_by_depth(parents[:count])
                record = PassRecord(plan.pass_index, nodes, accepted, accepted + 1, prefill=row.prefill)
                events += self._advance(sequence, emitted[: accepted + 1], record)
        return tuple(events)

    def _allowed_nodes(self) -> dict[int, int]:
        """Draft nodes that the pass's budget allows each decoding sequence: equal shares of what decoding leaves,
        or of half of it where prefill wants the rest."""
        decoding = [sequence for sequence in self._running if self._decodes(sequence)]
        spare = self._max_pass_tokens - len(self._running)
        if self._waiting or len(decoding) < len(self._running):
            spare //= 2
        share = max(spare, 0) // max(len(decoding), 1)
        return {sequence.sequence_id: min(self._wanted_nodes(sequence), share) for sequence in decoding}

    def _feed_running(self, budget: int) -> list[_Feed]:
        """Decoding sequences first, so that a long prompt never stalls them, then prompts under way."""
        feeds: list[_Feed] = []
        for sequence in sorted(self._running, key=lambda item: (self._pending(item) > 1, *item.order)):
            if budget > 0 and sequence in self._running and self._make_room(sequence, feeds):
                feed = self._feed(sequence, budget)
                budget -= feed.fed
                feeds.append(feed)
        return feeds

    def _make_room(self, sequence: Sequence, feeds: list[_Feed]) -> bool:
        """Room for one more position, taken from those later in order if need be; never from the pass's own rows."""
        planned = {feed.sequence.sequence_id for feed in feeds}
        while self.kv_cache.room(sequence.sequence_id) < 1:
            later = [item for item in self._running if item.order > sequence.order]
            victims = [item for item in later if item.sequence_id not in planned]
            if not victims:
                return False
            self._preempt(max(victims, key=lambda item: item.order))
        return True

    def _admit(self, budget: int, feeds: list[_Feed]) -> tuple[EngineEvent, ...]:
        """Admit in order while batch, budget and memory last; the first that does not fit holds the rest back."""
        started: list[EngineEvent] = []
        while self._waiting and len(self._running) < self._max_batch_size and budget > 0:
            sequence = self._waiting[0]
            if not self.kv_cache.reserve(sequence.sequence_id, len(sequence.tokens)):
                break
            self._running.append(self._waiting.pop(0))
            if not sequence.started:
                sequence.started = True
                started.append(Started(sequence.request.request_id))
            feed = self._feed(sequence, budget)
            budget -= feed.fed
            feeds.append(feed)
        return tuple(started)

    def _feed(self, sequence: Sequence, budget: int) -> _Feed:
        count = min(self._pending(sequence), budget, self.kv_cache.room(sequence.sequence_id))
        self.kv_cache.reserve(sequence.sequence_id, count)
        return _Feed(sequence, count)

    def _row(self, feed: _Feed, allowed: int) -> PlanRow:
        """The row of a sequence, with as many draft nodes as the blocks that are left can hold."""
        sequence, fed = feed
        nodes = min(allowed, self.kv_cache.room(sequence.sequence_id) - fed)
        samples = fed == self._pending(sequence)
        self.kv_cache.reserve(sequence.sequence_id, fed + nodes)
        return PlanRow(
            sequence_id=sequence.sequence_id,
            request=sequence.request,
            history=sequence.tokens,
            start=self.kv_cache.length(sequence.sequence_id),
            fed=fed,
            samples=samples,
            prefill=sequence.generated == 0,
            max_depth=min(self._depth(sequence), nodes),
            max_nodes=nodes,
            blocks=self.kv_cache.blocks(sequence.sequence_id),
            choice=sequence.choice,
            scored=int(samples),
        )

    def _decodes(self, sequence: Sequence) -> bool:
        """Only its last token is not cached, and that one was generated: it may draft."""
        return sequence.generated > 0 and self._pending(sequence) == 1

    def _depth(self, sequence: Sequence) -> int:
        """Deepest draft that can be emitted: the bonus takes one of the remaining tokens."""
        return min(sequence.request.max_draft_tokens, sequence.remaining - 1)

    def _wanted_nodes(self, sequence: Sequence) -> int:
        depth = self._depth(sequence)
        return self._needs.max_nodes if self._needs.tree and depth else min(depth, self._needs.max_nodes)

    def _pending(self, sequence: Sequence) -> int:
        """Known tokens that are not cached."""
        return len(sequence.tokens) - self.kv_cache.length(sequence.sequence_id)

    def _advance(self, sequence: Sequence, emitted: list[int], record: PassRecord) -> tuple[EngineEvent, ...]:
        """Append what the pass emitted, up to the output's end. Without a bonus the request fails after the rest."""
        request_id = sequence.request.request_id
        good = emitted[: emitted.index(NO_TOKEN)] if NO_TOKEN in emitted else emitted
        ending = sequence.ending(good)
        kept, finish = ending if ending else (len(good), None)
        sequence.tokens += good[:kept]
        failed = finish is None and len(good) < len(emitted)
        if finish or failed:
            self._remove(sequence)
            record = record.cut_to(kept)
        output = StepOutput(request_id, sequence.choice, tuple(good[:kept]), (record,), finish)
        if not failed:
            return (output,)
        error = Failed(request_id, EngineFault("the model's logits are not finite; this request cannot go on"))
        return (output, error) if kept else (error,)

    def _end(self, sequence: Sequence, reason: FinishReason) -> EngineEvent:
        """End a sequence between passes."""
        self._remove(sequence)
        request_id = sequence.request.request_id
        if reason is FinishReason.DEADLINE and not sequence.started:
            return Failed(request_id, DeadlineExceeded("the time was over while the request waited in the queue"))
        return StepOutput(request_id, sequence.choice, (), (), Finish(reason))

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.kv_cache.release(sequence.sequence_id)
        self._running.remove(sequence)
        bisect.insort(self._waiting, sequence, key=lambda item: item.order)

    def _remove(self, sequence: Sequence) -> None:
        del self._by_request[sequence.request.request_id]
        queue = self._running if sequence in self._running else self._waiting
        queue.remove(sequence)
        self.kv_cache.release(sequence.sequence_id)
        self._released.append(sequence.sequence_id)
