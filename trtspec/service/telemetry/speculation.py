"""The numbers of speculation as counters: sums only, for ratios of sums are right over any time and any fleet."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry.catalogue import Family
from trtspec.service.telemetry.registry import Counter, Registry


class SpeculationCounters:
    """Of one arm."""

    def __init__(self, registry: Registry, arm: str) -> None:
        self._registry = registry
        self._arm = arm
        self._passes = registry.counter(names.PASSES, arm)
        self._drafts = registry.counter(names.DRAFTS, arm)
        self._drafted = registry.counter(names.DRAFTED, arm)
        self._accepted = registry.counter(names.ACCEPTED, arm)
        self._emitted = registry.counter(names.EMITTED, arm)
        self._nodes = registry.counter(names.NODES, arm)
        self._rejected = registry.counter(names.REJECTED, arm)
        self._steps: list[Counter] = []
        self._accepted_at: list[Counter] = []
        self._drafted_at: list[Counter] = []

    def add(self, stats: SpeculationStats) -> None:
        self._passes.add(stats.decode_passes)
        self._drafts.add(stats.spec_steps)
        self._drafted.add(stats.drafted)
        self._accepted.add(stats.accepted)
        self._emitted.add(stats.emitted)
        self._nodes.add(stats.verified_nodes)
        self._rejected.add(stats.rejected_steps)
        self._add_each(names.STEPS, self._steps, stats.histogram)
        # A position that was drafted and never accepted has a 0 to divide, not a hole.
        self._add_each(names.ACCEPTED_AT, self._accepted_at, _padded(stats.accepted_at, len(stats.drafted_at)))
        self._add_each(names.DRAFTED_AT, self._drafted_at, stats.drafted_at)

    def _add_each(self, family: Family, counters: list[Counter], amounts: Sequence[int]) -> None:
        for index in range(len(counters), len(amounts)):
            counters.append(self._registry.counter(family, self._arm, str(index)))
        for counter, amount in zip(counters, amounts, strict=False):
            counter.add(amount)


def _padded(amounts: tuple[int, ...], size: int) -> tuple[int, ...]:
    return amounts + (0,) * (size - len(amounts))
