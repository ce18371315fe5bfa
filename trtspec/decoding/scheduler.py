"""In-flight batching: who takes part in the next pass, and what a pass changes.

Sequences join and leave between passes. `plan` reserves, `commit` settles; nothing else changes shared state.
Order is priority, then arrival, then choice. Prefill runs in chunks beside decoding. When blocks run short, drafts
shrink first, then sequences are preempted. The work of a pass grows with the pass, not with who waits and not with
the text so far.
"""

from __future__ import annotations

from torch import Tensor

from trtspec.decoding.draft import nodes_by_depth
from trtspec.decoding.feeding import Feeding, pending
from trtspec.decoding.kv_cache import KVCache, SlotCopy
from trtspec.decoding.logprobs import RowLogprobs
from trtspec.decoding.plan import PlanRow, StepPlan
from trtspec.decoding.proposer import Advance, Needs
from trtspec.decoding.roster import LiveRequest, Roster
from trtspec.decoding.sampling import FAULTS, NO_TOKEN, fault
from trtspec.decoding.sequence import Sequence
from trtspec.decoding.step import PassResult
from trtspec.errors import DeadlineExceeded, RequestError
from trtspec.speculation_limit import NO_LIMIT
from trtspec.types import EngineEvent, Failed, Finish, FinishReason, PassRecord, Request, StepOutput


class Scheduler:
    """Owns the sequences and the KV bookkeeping of one engine. A pass must hold a token of each sequence at least."""

    def __init__(self, kv_cache: KVCache, needs: Needs, max_batch_size: int, max_pass_tokens: int) -> None:
        self.kv_cache = kv_cache
        self.passes = 0
        self.limit = NO_LIMIT
        self._needs = needs
        self._max_batch_size = max_batch_size
        self._max_pass_tokens = max_pass_tokens
        self._roster = Roster(kv_cache.block_tokens, kv_cache.prefix_sharing, needs.caches)
        self._copies: list[SlotCopy] = []
        self._released: list[int] = []
        self._advances: dict[int, Advance] = {}

    @property
    def running(self) -> int:
        return len(self._roster.running)

    @property
    def waiting(self) -> int:
        return self._roster.not_running

    @property
    def preemptions(self) -> int:
        return self._roster.preemptions

    @property
    def idle(self) -> bool:
        return not self._roster.live

    def add(self, request: Request) -> None:
        """Queue a request; raises `DuplicateRequest` while another with its id lives."""
        self._roster.add(request)

    def cancel(self, request_id: str) -> tuple[EngineEvent, ...]:
        """End all outputs of a request now; unknown ids, such as one that just ended, are no error."""
        live = self._roster.live.get(request_id)
        return self._end(live, FinishReason.CANCELLED) if live else ()

    def expire(self, now: float) -> tuple[EngineEvent, ...]:
        """End what is past its deadline: with DEADLINE once started, with an error if still queued."""
        return tuple(event for live in self._roster.overdue(now) for event in self._end(live, FinishReason.DEADLINE))

    def plan(self) -> tuple[StepPlan | None, tuple[EngineEvent, ...]]:
        """The next pass with its memory reserved, and `Started` for who joins; None where there is nothing to do.

        Known tokens come first, those of waiting sequences included; drafts get what is left.
        """
        allowed = self._allowed_nodes()
        budget = self._max_pass_tokens - sum(allowed.values())
        feeding = Feeding(self.kv_cache, self._roster, budget, self._release, self.limit)
        started = feeding.feed(self._max_batch_size)
        if not feeding.fed:
            return None, started
        rows = tuple(self._row(number, fed, allowed.get(number, 0)) for number, fed in feeding.fed.items())
        plan = StepPlan(self.passes, rows, tuple(self._copies), tuple(self._released), self._last_advances())
        self.passes += 1
        self._copies.clear()
        self._released.clear()
        self._advances.clear()
        return plan, started

    def commit(self, plan: StepPlan, result: PassResult) -> tuple[EngineEvent, ...]:
        """Settle a pass: keep accepted positions, end outputs, and tell what is new.

        A row whose sequence ended meanwhile counts nowhere.
        """
        columns = zip(
            plan.rows,
            result.draft.parents.tolist(),
            result.draft.counts.tolist(),
            result.outcome.path.tolist(),
            result.outcome.accepted.tolist(),
            result.outcome.emitted.tolist(),
            result.logprobs,
            result.features,
            result.completed,
            strict=True,
        )
        events: list[EngineEvent] = []
        for row, parents, count, path, accepted, emitted, logprobs, features, completed in columns:
            sequence = self._roster.running.get(row.sequence_id)
            if sequence is None:
                continue
            self._note_advance(sequence, row, accepted, features)
            self._copies += self.kv_cache.commit(row.sequence_id, row.fed, path[:accepted])
            if sequence.scores_prompt and logprobs is not None:
                sequence.score_prompt(row.start, logprobs.prompt)
            if row.samples:
                self.kv_cache.trim(row.sequence_id)
                nodes = nodes_by_depth(parents[:count])
                record = PassRecord(plan.pass_index, nodes, accepted, accepted + 1, prefill=row.prefill)
                events += self._advance(sequence, emitted[: accepted + 1], record, logprobs, completed)
            else:
                self.kv_cache.publish(row.sequence_id, sequence.tokens, sequence.names)
        return tuple(events)

    def _note_advance(self, sequence: Sequence, row: PlanRow, accepted: int, features: Tensor | None) -> None:
        self._advances[row.sequence_id] = Advance(
            sequence_id=row.sequence_id,
            request=row.request,
            tokens=sequence.tokens,
            start=row.start,
            count=row.fed + accepted,
            blocks=row.blocks,
            features=features,
        )

    def _last_advances(self) -> tuple[Advance, ...]:
        """Those of sequences that still have what they cached: a preempted one, even if it is back, has not."""
        return tuple(
            item
            for item in self._advances.values()
            if item.sequence_id in self._roster.running
            and self.kv_cache.length(item.sequence_id) == item.start + item.count
            and self.kv_cache.blocks(item.sequence_id) is item.blocks
        )

    def _allowed_nodes(self) -> dict[int, int]:
        """Draft nodes that the pass's budget allows each decoding sequence: equal shares of what decoding leaves,
        or of half of it where prefill wants the rest."""
        running = self._roster.running.values()
        decoding = [sequence for sequence in running if self._decodes(sequence)]
        spare = self._max_pass_tokens - len(running)
        may_join = self._roster.waiting and len(running) < self._max_batch_size
        if may_join or len(decoding) < len(running):
            spare //= 2
        share = max(spare, 0) // max(len(decoding), 1)
        return {sequence.sequence_id: min(self._wanted_nodes(sequence), share) for sequence in decoding}

    def _row(self, sequence_id: int, fed: int, allowed: int) -> PlanRow:
        """The row of a sequence, with as many draft nodes as the blocks that are left can hold."""
        sequence = self._roster.running[sequence_id]
        nodes = min(allowed, self.kv_cache.room(sequence_id) - fed)
        samples = fed == pending(self.kv_cache, sequence)
        self.kv_cache.reserve(sequence_id, fed + nodes)
        return PlanRow(
            sequence_id=sequence_id,
            request=sequence.request,
            history=sequence.tokens,
            start=self.kv_cache.length(sequence_id),
            fed=fed,
            samples=samples,
            prefill=sequence.generated == 0,
            max_depth=min(self._depth(sequence), nodes),
            max_nodes=nodes,
            blocks=self.kv_cache.blocks(sequence_id),
            choice=sequence.choice,
            scored=fed if sequence.scores_prompt else int(samples),
        )

    def _decodes(self, sequence: Sequence) -> bool:
        """Only its last token is not cached, and that one was generated: it may draft."""
        return sequence.generated > 0 and pending(self.kv_cache, sequence) == 1

    def _depth(self, sequence: Sequence) -> int:
        """Deepest draft that can be emitted: the bonus takes one of the remaining tokens."""
        return min(self.limit.cap(sequence.request.max_draft_tokens), sequence.remaining - 1)

    def _wanted_nodes(self, sequence: Sequence) -> int:
        depth = self._depth(sequence)
        return self._needs.max_nodes if self._needs.tree and depth else min(depth, self._needs.max_nodes)

    def _advance(
        self,
        sequence: Sequence,
        emitted: list[int],
        record: PassRecord,
        logprobs: RowLogprobs | None,
        completed: int | None,
    ) -> tuple[EngineEvent, ...]:
        """Append what the pass emitted, up to the output's end. Without a bonus the request fails after the rest."""
        request_id = sequence.request.request_id
        good = emitted[:-1] if emitted[-1] in FAULTS else emitted
        kept, finish = sequence.ending(good, completed) or (len(good), None)
        failed = finish is None and len(good) < len(emitted)
        output = StepOutput(
            request_id,
            sequence.choice,
            tuple(good[:kept]),
            (record.cut_to(kept) if finish or failed else record,),
            finish,
            logprobs.emitted[:kept] if logprobs else (),
            tuple(sequence.prompt_logprobs),
        )
        sequence.prompt_logprobs.clear()
        sequence.tokens += good[:kept]
        if failed:
            if emitted[-1] == NO_TOKEN:
                self.kv_cache.withdraw(sequence.sequence_id)  # what led to such logits must not reach another request
            error = self._fail(sequence.request, fault(emitted[-1], sequence.request.guide))
            return (output, error) if kept else (error,)
        self.kv_cache.publish(sequence.sequence_id, sequence.tokens, sequence.names)
        if record.prefill:
            self._roster.let_siblings_wait(sequence)
        if finish:
            self._remove(sequence)
        return (output,)

    def _end(self, live: LiveRequest, reason: FinishReason) -> tuple[EngineEvent, ...]:
        """End a request between passes."""
        if reason is FinishReason.DEADLINE and not live.started:
            error = DeadlineExceeded("the time was over while the request waited in the queue")
            return (self._fail(live.request, error),)
        choices = self._drop(live)
        return tuple(StepOutput(live.request.request_id, choice, (), (), Finish(reason)) for choice in choices)

    def _fail(self, request: Request, error: RequestError) -> Failed:
        self._drop(self._roster.live[request.request_id])
        return Failed(request.request_id, error)

    def _drop(self, live: LiveRequest) -> list[int]:
        """End all outputs of a request that have not ended; returns which."""
        sequences = list(live.sequences.values())
        for sequence in sequences:
            self._remove(sequence)
        return [sequence.choice for sequence in sequences]

    def _remove(self, sequence: Sequence) -> None:
        self._roster.remove(sequence)
        self._release(sequence.sequence_id)
        self._released.append(sequence.sequence_id)

    def _release(self, sequence_id: int) -> None:
        """Give its blocks back. What a drafter has not read of them is not there for it, so nobody may find them."""
        unread = self._advances.pop(sequence_id, None)
        if unread and unread.request.drafts and self._needs.caches:
            self.kv_cache.withdraw(sequence_id, max(unread.start - self._needs.behind, 0))
        self.kv_cache.release(sequence_id)
