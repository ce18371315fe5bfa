"""Totals over all processes that answer clients, in the process that holds the engine.

A front-end that died took nothing with it but what it had not told yet: its last totals stay, so that no counter falls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from trtspec.service.telemetry import catalogue as names
from trtspec.service.telemetry.registry import Key, Row, Snapshot, total
from trtspec.service.telemetry.slices import MOST_TASKS, FirstFew

_TASK = names.SLICE.index("task")


class Source:
    """One process that answers clients."""

    def __init__(self, read: Callable[[], Snapshot] | None = None) -> None:
        self._told: Snapshot = {}
        self._read = read

    def tell(self, snapshot: Snapshot) -> None:
        """Its totals since it began."""
        self._told = snapshot

    def snapshot(self) -> Snapshot:
        return self._read() if self._read else self._told


class Totals:
    """Adds up what the sources have."""

    def __init__(self) -> None:
        self._live: list[Source] = []
        self._gone: dict[Key, Row] = {}
        self._tasks = FirstFew(MOST_TASKS)

    @property
    def sources(self) -> int:
        return len(self._live)

    @contextmanager
    def joined(self, read: Callable[[], Snapshot] | None = None) -> Iterator[Source]:
        """A new source: one that tells, or one of this process that is read. In the end what it told stays."""
        self._live.append(source := Source(read))
        try:
            yield source
        finally:
            self._live.remove(source)
            self._gone = total((self._gone, self._bounded(source.snapshot())))

    def read(self, families: Collection[str] = names.BY_NAME) -> dict[Key, Row]:
        """The totals of some families."""
        snapshots = [self._gone, *(self._bounded(source.snapshot()) for source in self._live)]
        return total({key: row for key, row in snapshot.items() if key[0] in families} for snapshot in snapshots)

    def _bounded(self, snapshot: Snapshot) -> Snapshot:
        """With the names of tasks that all processes together may have."""
        return total({self._renamed(key): row} for key, row in snapshot.items())

    def _renamed(self, key: Key) -> Key:
        family, labels = key
        if names.BY_NAME[family].labels != names.SLICE:
            return key
        task = self._tasks.of(labels[_TASK])
        return family, (*labels[:_TASK], task, *labels[_TASK + 1 :])
