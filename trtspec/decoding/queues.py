"""A queue in order from which anything can be taken. It knows nothing of what it holds."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = tuple[float, ...]

_MOST_GONE = 64
"""So many removed entries may stay, so that small queues are never rebuilt."""


class OrderedQueue(Generic[Item]):
    """Items by key, smallest first, equal ones in the order of arrival.

    Adding costs O(log n), removing O(1): a removed entry stays in the heap until it comes to the front, or until
    most entries are such. Items are told apart by identity or by their own `__eq__`, and must be hashable.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Item]] = []
        self._serials: dict[Item, int] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._serials)

    def add(self, item: Item, key: Key) -> None:
        """Queue an item that is not queued."""
        self._serials[item] = self._added
        heapq.heappush(self._heap, (key, self._added, item))
        self._added += 1

    def remove(self, item: Item) -> None:
        """Take an item out, wherever it stands; one that is not queued is no error."""
        self._serials.pop(item, None)
        if len(self._heap) > 2 * len(self._serials) + _MOST_GONE:
            self._heap = [entry for entry in self._heap if self._holds(entry)]
            heapq.heapify(self._heap)

    def first(self) -> Item | None:
        """The item in front; None where the queue is empty."""
        while self._heap and not self._holds(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def take_up_to(self, bound: Key) -> list[Item]:
        """Take out all items whose key is at most `bound`."""
        taken: list[Item] = []
        while (item := self.first()) is not None and self._heap[0][0] <= bound:
            self.remove(item)
            taken.append(item)
        return taken

    def _holds(self, entry: tuple[Key, int, Item]) -> bool:
        """A removed item that was added again has a new serial."""
        return self._serials.get(entry[2]) == entry[1]
