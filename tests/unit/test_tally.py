"""Records of passes that are counted by what they are."""

from __future__ import annotations

from trtspec.decoding.stats import SpeculationStats
from trtspec.service.watching import Tally
from trtspec.types import PassRecord


def test_passes_that_are_alike_are_counted_as_if_one_by_one() -> None:
    records = [
        PassRecord(0, prefill=True),
        PassRecord(1, (1, 1, 1), 2, 3),
        PassRecord(2, (1, 1, 1), 2, 3),
        PassRecord(3, (2, 1), 0, 1),
        PassRecord(4, (1, 1, 1), 2, 2, cut=True),
        PassRecord(5),
        PassRecord(6),
    ]
    tally = Tally()
    tally.add(records[:3])
    tally.add(records[3:])
    assert tally.stats == SpeculationStats.of(records)
    assert Tally().stats == SpeculationStats()
