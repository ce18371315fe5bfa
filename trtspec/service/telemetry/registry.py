"""Counters and histograms of one process, for one thread: adding is an addition, and needs no lock.

A snapshot is plain values that can be sent and added up: counters and histograms are both rows of numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from trtspec.service.telemetry.catalogue import Family

Key = tuple[str, tuple[str, ...]]
"""A family's name and the values of its labels."""
Row = tuple[float, ...]
"""A counter's value; or of a histogram the count in each bucket, of what is beyond them, and the sum."""
Snapshot = Mapping[Key, Row]


class Counter:
    """Only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        self.value += amount

    def row(self) -> Row:
        return (self.value,)


class Histogram:
    """Counts of values, by the least bound that is not below them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def row(self) -> Row:
        return (*self.counts, self.sum)


class Registry:
    """Makes each series once; whoever counts often keeps what it got."""

    def __init__(self) -> None:
        self._series: dict[Key, Counter | Histogram] = {}

    def counter(self, family: Family, *labels: str) -> Counter:
        found = self._series.get((family.name, labels))
        if not isinstance(found, Counter):
            _check(family, labels)
            found = self._series[family.name, labels] = Counter()
        return found

    def histogram(self, family: Family, *labels: str) -> Histogram:
        found = self._series.get((family.name, labels))
        if not isinstance(found, Histogram):
            _check(family, labels)
            found = self._series[family.name, labels] = Histogram(family.buckets)
        return found

    def snapshot(self) -> dict[Key, Row]:
        return {key: series.row() for key, series in self._series.items()}


def total(snapshots: Iterable[Snapshot]) -> dict[Key, Row]:
    """All of them added up."""
    result: dict[Key, Row] = {}
    for snapshot in snapshots:
        for key, row in snapshot.items():
            known = result.get(key)
            result[key] = row if known is None else tuple(a + b for a, b in zip(known, row, strict=True))
    return result


def _check(family: Family, labels: tuple[str, ...]) -> None:
    assert len(labels) == len(family.labels), f"{family.name} has the labels {family.labels}, not {labels}"
