"""The numbers of speculation, defined once.

Unknown is absent (None), never 0: a ratio without a denominator has no value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from trtspec.types import PassRecord


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals over passes; add two to get the totals of both."""

    prefill_tokens: int = 0
    """First tokens, which come from prefill and are in no other number."""
    decode_passes: int = 0
    spec_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    verified_nodes: int = 0
    emitted: int = 0
    """Tokens of decode passes."""
    rejected_steps: int = 0
    """Spec steps with accepted < drafted that did not end the output."""
    histogram: tuple[int, ...] = ()
    """Element j: spec steps with exactly j accepted tokens."""
    drafted_at: tuple[int, ...] = ()
    """Element i: spec steps with drafted >= i + 1."""
    accepted_at: tuple[int, ...] = ()
    """Element i: spec steps with accepted >= i + 1."""

    @classmethod
    def of(cls, records: Iterable[PassRecord]) -> SpeculationStats:
        """The totals of some passes."""
        tally = Tally()
        tally.count(records)
        return tally.stats

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(
            prefill_tokens=self.prefill_tokens + other.prefill_tokens,
            decode_passes=self.decode_passes + other.decode_passes,
            spec_steps=self.spec_steps + other.spec_steps,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            verified_nodes=self.verified_nodes + other.verified_nodes,
            emitted=self.emitted + other.emitted,
            rejected_steps=self.rejected_steps + other.rejected_steps,
            histogram=_add(self.histogram, other.histogram),
            drafted_at=_add(self.drafted_at, other.drafted_at),
            accepted_at=_add(self.accepted_at, other.accepted_at),
        )

    def __mul__(self, times: int) -> SpeculationStats:
        """The totals of so many passes that were all alike."""
        values: dict[str, Any] = {
            item.name: tuple(times * one for one in value) if isinstance(value, tuple) else times * value
            for item in fields(self)
            for value in (getattr(self, item.name),)
        }
        return replace(self, **values)

    @property
    def completion_tokens(self) -> int:
        return self.prefill_tokens + self.emitted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def node_yield(self) -> float | None:
        """Accepted / verified nodes; equals the acceptance rate for chains, never comparable between shapes."""
        return _ratio(self.accepted, self.verified_nodes)

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted / spec steps, bonus not counted."""
        return _ratio(self.accepted, self.spec_steps)

    @property
    def acceptance_length(self) -> float | None:
        """AL = 1 + accepted / spec steps."""
        mean = self.mean_accepted_length
        return None if mean is None else 1.0 + mean

    @property
    def tokens_per_pass(self) -> float | None:
        """Emitted / decode passes: the factor by which the schedule is shorter."""
        return _ratio(self.emitted, self.decode_passes)

    @property
    def rejection_frequency(self) -> float | None:
        """Rejected steps / spec steps."""
        return _ratio(self.rejected_steps, self.spec_steps)

    @property
    def per_position(self) -> tuple[float, ...]:
        """Element i: of the steps that drafted position i, the share that accepted it."""
        accepted = self.accepted_at + (0,) * (len(self.drafted_at) - len(self.accepted_at))
        return tuple(a / d for a, d in zip(accepted, self.drafted_at, strict=True))

    def check(self) -> None:
        """Assert the invariants that hold for any engine and any run."""
        assert 0 <= self.accepted <= self.drafted <= self.verified_nodes
        assert self.spec_steps <= self.decode_passes
        assert self.emitted <= self.accepted + self.decode_passes
        assert sum(self.histogram) == self.spec_steps
        assert sum(j * steps for j, steps in enumerate(self.histogram)) == self.accepted == sum(self.accepted_at)
        assert sum(self.drafted_at) == self.drafted


class Tally:
    """Counts passes as they come: what `SpeculationStats.of` all of them would be."""

    def __init__(self) -> None:
        self._prefill_tokens = self._decode_passes = self._emitted = self._verified_nodes = self._rejected_steps = 0
        self._drafts: Counter[int] = Counter()
        """Spec steps by what they drafted."""
        self._accepted: Counter[int] = Counter()
        """Spec steps by what they accepted."""

    def count(self, records: Iterable[PassRecord]) -> None:
        """Take some more passes."""
        for record in records:
            if record.prefill:
                self._prefill_tokens += record.emitted
                continue
            self._decode_passes += 1
            self._emitted += record.emitted
            if drafted := record.drafted:
                self._verified_nodes += record.verified_nodes
                self._rejected_steps += record.accepted < drafted and not record.cut
                self._drafts[drafted] += 1
                self._accepted[record.accepted] += 1

    @property
    def stats(self) -> SpeculationStats:
        """The totals so far."""
        return SpeculationStats(
            prefill_tokens=self._prefill_tokens,
            decode_passes=self._decode_passes,
            spec_steps=sum(self._drafts.values()),
            drafted=sum(drafted * steps for drafted, steps in self._drafts.items()),
            accepted=sum(accepted * steps for accepted, steps in self._accepted.items()),
            verified_nodes=self._verified_nodes,
            emitted=self._emitted,
            rejected_steps=self._rejected_steps,
            histogram=tuple(self._accepted[count] for count in range(max(self._accepted, default=-1) + 1)),
            drafted_at=_at_least(self._drafts),
            accepted_at=_at_least(self._accepted),
        )


def _at_least(steps: Counter[int]) -> tuple[int, ...]:
    """Element i: steps that have i + 1 or more."""
    return tuple(sum(n for count, n in steps.items() if count > i) for i in range(max(steps, default=0)))


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    short, long = sorted((a, b), key=len)
    return tuple(x + y for x, y in zip(long, short + (0,) * (len(long) - len(short)), strict=True))
