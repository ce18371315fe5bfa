"""Numbers of a stretch of time, from two snapshots of counters. What nothing happened for is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry.catalogue import Family
from trtspec.service.telemetry.registry import Row, Snapshot


def between(before: Snapshot, after: Snapshot) -> dict[tuple[str, tuple[str, ...]], Row]:
    """What was counted between two snapshots."""
    return {
        key: tuple(b - a for a, b in zip(before[key], row, strict=True)) if key in before else row
        for key, row in after.items()
    }


def amount(counted: Snapshot, family: Family) -> float:
    """A counter, over all its labels."""
    return sum(row[0] for _, row in _of(counted, family))


def by_label(counted: Snapshot, family: Family, label: str) -> dict[str, float]:
    """A counter by the values of one label, over all others."""
    at = family.labels.index(label)
    result: dict[str, float] = {}
    for labels, row in _of(counted, family):
        result[labels[at]] = result.get(labels[at], 0) + row[0]
    return result


def by_number(counted: Snapshot, family: Family, label: str) -> list[float]:
    """The same where the label counts from 0."""
    found = by_label(counted, family, label)
    return [found.get(str(index), 0) for index in range(max((int(name) for name in found), default=-1) + 1)]


def ratio(counted: Snapshot, above: Family, below: Family) -> float | None:
    """Of two sums."""
    denominator = amount(counted, below)
    return amount(counted, above) / denominator if denominator else None


def acceptance_length(counted: Snapshot) -> float | None:
    """AL, as `trtspec.decoding.stats` defines it."""
    mean = ratio(counted, names.ACCEPTED, names.DRAFTS)
    return None if mean is None else 1 + mean


def times(counted: Snapshot, family: Family) -> list[float]:
    """A histogram's counts, over all labels."""
    rows = [row[:-1] for _, row in _of(counted, family)]
    return [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * (len(family.buckets) + 1)


def quantile(counts: Sequence[float], bounds: Sequence[float], share: float) -> float | None:
    """Where this share of the values lies, as Prometheus' histogram_quantile has it."""
    whole = sum(counts)
    if not whole:
        return None
    rank, below, low = share * whole, 0.0, 0.0
    for count, high in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below, low = below + count, high
    return bounds[-1]


def _of(counted: Snapshot, family: Family) -> Iterator[tuple[tuple[str, ...], Row]]:
    return ((labels, row) for (name, labels), row in counted.items() if name == family.name)
