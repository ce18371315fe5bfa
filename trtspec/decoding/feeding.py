"""Which sequences take part in a pass, and how many known tokens each gets. Drafts get what is left.

Decoding comes first, so that a long prompt never stalls it, then prompts, those that wait to join included. When blocks
run short, the last sequence in order gives its blocks back and is computed again later (preemption by recompute).
"""

from __future__ import annotations

from collections.abc import Callable

from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.roster import LiveRequest, Roster
from trtspec.decoding.sequence import Sequence
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import Started


class Feeding:
    """One pass being planned."""

    def __init__(
        self,
        kv_cache: KVCache,
        roster: Roster,
        budget: int,
        release: Callable[[int], None],
        limit: SpeculationLimit = NO_LIMIT,
    ) -> None:
        self.fed: dict[int, int] = {}
        """Known tokens that take part, by sequence id, in the order of the pass's rows."""
        self._kv_cache = kv_cache
        self._roster = roster
        self._budget = budget
        self._release = release
        self._limit = limit
        self._by_order = sorted(roster.running.values(), key=lambda item: item.order)

    def feed(self, max_batch_size: int) -> tuple[Started, ...]:
        """Feed all in order, and tell who joins. Where blocks run short, those later in order stop running."""
        victims = list(self._by_order)
        started: list[Started] = []
        for sequence in sorted(self._by_order, key=lambda item: pending(self._kv_cache, item) > 1):
            if pending(self._kv_cache, sequence) > 1:
                started += self._admit(max_batch_size, sequence.order)
            runs = sequence.sequence_id in self._roster.running
            if self._budget > 0 and runs and self._make_room(sequence, victims):
                self._feed(sequence)
        return (*started, *self._admit(max_batch_size, None))

    def _admit(self, max_batch_size: int, before: tuple[int, int, int] | None) -> list[Started]:
        """Admit those that come before a place in order, while batch, budget and memory last.

        The first that does not fit holds the rest back.
        """
        started: list[Started] = []
        while self._budget > 0 and len(self._roster.running) < max_batch_size:
            sequence = self._roster.waiting.first()
            if sequence is None or (before is not None and sequence.order > before):
                break
            live = self._roster.live[sequence.request.request_id]
            if not live.started:
                # Plain from the start, it costs a drafter nothing: none of them has to keep up with it.
                self._roster.draft_to(live, 0 if self._limit.off else live.asked_depth)
            names = () if sequence.scores_prompt else (sequence.names, *sequence.readable)
            found = self._kv_cache.open(sequence.sequence_id, sequence.tokens, names)
            if found is None:
                break
            self._roster.start(sequence)
            if not live.started:
                live.started = True
                started.append(Started(live.request.request_id, found, self._lowered(live)))
            self._feed(sequence)
        return started

    def _lowered(self, live: LiveRequest) -> int | None:
        """How deep its drafts are, where that is less than it asks for."""
        depth = self._limit.cap(live.request.max_draft_tokens)
        return depth if depth < live.asked_depth else None

    def _feed(self, sequence: Sequence) -> None:
        room = self._kv_cache.room(sequence.sequence_id)
        count = min(pending(self._kv_cache, sequence), self._budget, room)
        self._kv_cache.reserve(sequence.sequence_id, count)
        self.fed[sequence.sequence_id] = count
        self._budget -= count

    def _make_room(self, sequence: Sequence, victims: list[Sequence]) -> bool:
        """Room for one more position, taken from those later in order if need be.

        None of them has a part in the pass yet: decoding goes in order, and prompts under way hold all their blocks.
        """
        while self._kv_cache.room(sequence.sequence_id) < 1:
            if not victims or victims[-1].order <= sequence.order:
                return False
            victim = victims.pop()
            self._release(victim.sequence_id)
            self._roster.preempt(victim)
        return True


def pending(kv_cache: KVCache, sequence: Sequence) -> int:
    """Known tokens of a sequence that are not cached."""
    return len(sequence.tokens) - kv_cache.length(sequence.sequence_id)
