"""In-flight batching: who takes part in the next pass, and what a pass changes.

Sequences join and leave between passes. `plan` reserves, `commit` settles; nothing else changes shared state.
Order is priority, then arrival. Prefill runs in chunks beside decoding. When blocks run short, drafts shrink first,
then the last sequence in order gives its blocks back and is computed again later (preemption by recompute).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Budget:
    """Tokens the pass being planned may still take."""

    tokens: int
    nodes_each: int
    """Draft nodes of one row; an equal share, so that early rows do not take them all."""


class Scheduler:
    """Owns the sequences and the KV bookkeeping of one engine."""

    def __init__(self, kv_cache: KVCache, needs: Needs, max_batch_size: int, max_pass_tokens: int) -> None:
        self.kv_cache = kv_cache
        self.preemptions = 0
        self.passes = 0
        self._needs = needs
        self._max_batch_size = max_batch_size
        self._max_pass_tokens = max(max_pass_tokens, max_batch_size)
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
        """The next pass with its memory reserved, and `Started` for who joins; None where there is nothing to do."""
        budget = _Budget(self._max_pass_tokens, self._node_share())
        rows = self._plan_running(budget)
        started = self._plan_waiting(budget, rows)
        if not rows:
            return None, started
        plan = StepPlan(self.passes, tuple(rows), tuple(self._copies), tuple(self._released))
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
                events.append(self._advance(sequence, emitted[: accepted + 1], record))
        return tuple(events)

    def _node_share(self) -> int:
        """Draft nodes for each decoding row; together half of what decoding leaves where prefill wants the rest."""
        decoding = sum(self._pending(sequence) == 1 for sequence in self._running)
        spare = self._max_pass_tokens - decoding
        prefill = self._waiting or decoding < len(self._running)
        return (spare // 2 if prefill else spare) // max(decoding, 1)

    def _plan_running(self, budget: _Budget) -> list[PlanRow]:
        """Decoding sequences first, so that a long prompt never stalls them, then prompts under way."""
        rows: list[PlanRow] = []
        planned: set[int] = set()
        for sequence in sorted(self._running, key=lambda item: (self._pending(item) > 1, *item.order)):
            if sequence not in self._running or budget.tokens == 0:
                continue
            if self._reserve_one(sequence, planned):
                planned.add(sequence.sequence_id)
                rows.append(self._row(sequence, budget))
        return rows

    def _reserve_one(self, sequence: Sequence, planned: set[int]) -> bool:
        """Room for one more position, taken from those later in order if need be; never from the pass's own rows."""
        while self.kv_cache.room(sequence.sequence_id) < 1:
            victims = [
                item for item in self._running if item.sequence_id not in planned and item.order > sequence.order
            ]
            if not victims:
                return False
            self._preempt(max(victims, key=lambda item: item.order))
        return True

    def _plan_waiting(self, budget: _Budget, rows: list[PlanRow]) -> tuple[EngineEvent, ...]:
        """Admit in order while batch, budget and memory last; the first that does not fit holds the rest back."""
        started: list[EngineEvent] = []
        while self._waiting and len(self._running) < self._max_batch_size and budget.tokens > 0:
            sequence = self._waiting[0]
            if not self.kv_cache.reserve(sequence.sequence_id, len(sequence.tokens)):
                break
            self._running.append(self._waiting.pop(0))
            if not sequence.started:
                sequence.started = True
                started.append(Started(sequence.request.request_id))
            rows.append(self._row(sequence, budget))
        return tuple(started)

    def _row(self, sequence: Sequence, budget: _Budget) -> PlanRow:
        """What the sequence feeds and may draft, within the budget and the blocks that are left."""
        pending = self._pending(sequence)
        fed = min(pending, budget.tokens, self.kv_cache.room(sequence.sequence_id))
        budget.tokens -= fed
        decoding = pending == 1 and sequence.generated > 0
        depth = min(sequence.request.max_draft_tokens, sequence.remaining - 1) if decoding else 0
        wanted = self._needs.max_nodes if self._needs.tree and depth else depth
        room = self.kv_cache.room(sequence.sequence_id) - fed
        nodes = max(0, min(wanted, budget.nodes_each, budget.tokens, room))
        budget.tokens -= nodes
        self.kv_cache.reserve(sequence.sequence_id, fed + nodes)
        return PlanRow(
            sequence_id=sequence.sequence_id,
            history=sequence.tokens,
            start=self.kv_cache.length(sequence.sequence_id),
            fed=fed,
            samples=fed == pending,
            prefill=sequence.generated == 0,
            max_depth=min(depth, nodes),
            max_nodes=nodes,
            blocks=self.kv_cache.blocks(sequence.sequence_id),
            sampling=sequence.request.sampling,
            seed=sequence.request.seed,
            choice=sequence.choice,
        )

    def _pending(self, sequence: Sequence) -> int:
        """Known tokens that are not cached."""
        return len(sequence.tokens) - self.kv_cache.length(sequence.sequence_id)

    def _advance(self, sequence: Sequence, emitted: list[int], record: PassRecord) -> EngineEvent:
        request_id = sequence.request.request_id
        if NO_TOKEN in emitted:
            self._remove(sequence)
            return Failed(request_id, EngineFault("the model's logits are not finite; this request cannot go on"))
        ending = sequence.ending(emitted)
        kept, finish = ending if ending else (len(emitted), None)
        sequence.tokens += emitted[:kept]
        if finish:
            self._remove(sequence)
            record = record.cut_to(kept)
        return StepOutput(request_id, sequence.choice, tuple(emitted[:kept]), (record,), finish)

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
