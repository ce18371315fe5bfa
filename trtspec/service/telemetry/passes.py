"""Passes of one request, gathered cheaply while it runs and turned into the numbers of speculation now and then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

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
        prefill_tokens = decode_passes = nodes = emitted = rejected = 0
        deepest = max((len(kind[0]) for kind in counts), default=0)
        by_accepted, by_drafted = [0] * (deepest + 1), [0] * (deepest + 1)
        for (depths, accepted, tokens, prefill, cut), count in counts.items():
            if prefill:
                prefill_tokens += tokens * count
                continue
            decode_passes += count
            emitted += tokens * count
            if depths:
                by_accepted[accepted] += count
                by_drafted[len(depths)] += count
                nodes += sum(depths) * count
                rejected += count * (accepted < len(depths) and not cut)
        return SpeculationStats(
            prefill_tokens=prefill_tokens,
            decode_passes=decode_passes,
            spec_steps=sum(by_drafted),
            drafted=sum(depth * count for depth, count in enumerate(by_drafted)),
            accepted=sum(length * count for length, count in enumerate(by_accepted)),
            verified_nodes=nodes,
            emitted=emitted,
            rejected_steps=rejected,
            histogram=_trimmed(by_accepted),
            drafted_at=_at_least(by_drafted),
            accepted_at=_at_least(by_accepted),
        )


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


def _trimmed(counts: list[int]) -> tuple[int, ...]:
    """Without zeros at its end."""
    while counts and not counts[-1]:
        counts = counts[:-1]
    return tuple(counts)


def _at_least(counts: list[int]) -> tuple[int, ...]:
    """Element i: how many have i + 1 or more, from how many have each length."""
    return _trimmed(list(accumulate(reversed(counts)))[-2::-1])


def _minus(all_: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...]:
    """A part is never longer than all."""
    return tuple(a - b for a, b in zip(all_, part + (0,) * (len(all_) - len(part)), strict=True))
