"""The queue that waiting sequences and deadlines stand in."""

from __future__ import annotations

import random

from trtspec.decoding.queues import OrderedQueue


def test_a_long_random_life_is_that_of_a_sorted_list() -> None:
    values = random.Random(1)
    queue: OrderedQueue[int] = OrderedQueue()
    model: list[tuple[int, int, int]] = []
    for serial in range(4000):
        match values.randrange(5):
            case 0 | 1:
                item, key = values.randrange(400), values.randrange(20)
                if all(held != item for _, _, held in model):
                    queue.add(item, (key,))
                    model.append((key, serial, item))
            case 2 if model:
                entry = values.choice(model)
                model.remove(entry)
                queue.remove(entry[2])
            case 4 if model and serial % 40 == 4:
                bound = min(model)[0]
                assert queue.take_up_to((bound,)) == [item for key, _, item in sorted(model) if key <= bound]
                model = [entry for entry in model if entry[0] > bound]
        assert queue.first() == (min(model)[2] if model else None)
        assert len(queue) == len(model)
    assert len(model) > 20


def test_removing_what_is_not_there_is_no_error_and_a_removed_item_can_come_back() -> None:
    queue: OrderedQueue[str] = OrderedQueue()
    queue.remove("a")
    queue.add("a", (1,))
    queue.remove("a")
    queue.add("b", (2,))
    queue.add("a", (3,))
    assert queue.first() == "b"
    assert queue.take_up_to((2,)) == ["b"]
    assert queue.first() == "a"


def test_removed_items_do_not_pile_up() -> None:
    """As deadlines far ahead would, of requests that ended long ago."""
    queue: OrderedQueue[int] = OrderedQueue()
    for item in range(10_000):
        queue.add(item, (item,))
        if item >= 10:
            queue.remove(item - 5)
    assert len(queue) == 10
    assert len(queue._heap) < 200
