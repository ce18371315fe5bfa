"""Passes of one request, gathered cheaply while it runs and turned into the numbers of speculation now and then."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.decoding.stats import SpeculationStats
from trtspec.types import PassRecord

_Kind = tuple[tuple[int, ...], int, int, bool, bool]
"""What tells passes apart in the numbers: all but their index."""


class Gathered:
    """Passes by kind. A request has few kinds, and one more of a kind costs one addition."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[_Kind, int] = {}

    def add(self, passes: Sequence[PassRecord]) -> None:
        counts = self._counts
        for item in passes:
            kind = (item.nodes_by_depth, item.accepted, item.emitted, item.prefill, item.cut)
            counts[kind] = counts.get(kind, 0) + 1

    def take(self) -> SpeculationStats:
        """The numbers of all that was added since the last time."""
        counts, self._counts = self._counts, {}
        return sum((_times(kind, count) for kind, count in counts.items()), SpeculationStats())


def minus(all_: SpeculationStats, part: SpeculationStats) -> SpeculationStats:
    """What is missing from a part."""
    return SpeculationStats(
        prefill_tokens=all_.prefill_tokens - part.prefill_tokens,
        decode_passes=all_.decode_passes - part.decode_passes,
        spec_steps=all_.spec_steps - part.spec_steps,
        drafted=all_.drafted - part.drafted,
        accepted=all_.accepted - part.accepted,
        verified_nodes=all_.verified_nodes - part.verified_nodes,
        emitted=all_.emitted - part.emitted,
        rejected_steps=all_.rejected_steps - part.rejected_steps,
        histogram=_minus(all_.histogram, part.histogram),
        drafted_at=_minus(all_.drafted_at, part.drafted_at),
        accepted_at=_minus(all_.accepted_at, part.accepted_at),
    )


def _times(kind: _Kind, count: int) -> SpeculationStats:
    nodes, accepted, emitted, prefill, cut = kind
    one = SpeculationStats.of([PassRecord(0, nodes, accepted, emitted, prefill, cut)])
    return SpeculationStats(
        prefill_tokens=one.prefill_tokens * count,
        decode_passes=one.decode_passes * count,
        spec_steps=one.spec_steps * count,
        drafted=one.drafted * count,
        accepted=one.accepted * count,
        verified_nodes=one.verified_nodes * count,
        emitted=one.emitted * count,
        rejected_steps=one.rejected_steps * count,
        histogram=tuple(count * steps for steps in one.histogram),
        drafted_at=tuple(count * steps for steps in one.drafted_at),
        accepted_at=tuple(count * steps for steps in one.accepted_at),
    )


def _minus(all_: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...]:
    """A part is never longer than all."""
    return tuple(a - b for a, b in zip(all_, part + (0,) * (len(all_) - len(part)), strict=True))
