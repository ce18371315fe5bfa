"""What the scheduler does for a pass depends on the pass: not on who waits, and not on how long the text is.

Work is counted and not timed: lines of our code that run, and elements of the text and of the block table that are
read or copied.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from trtspec.decoding.draft import Draft
from trtspec.decoding.kv_cache import KVCache
from trtspec.decoding.plan import StepPlan
from trtspec.decoding.proposer import Needs
from trtspec.decoding.scheduler import Scheduler
from trtspec.decoding.step import PassResult
from trtspec.decoding.verify import Outcome
from trtspec.types import Request

BATCH = 4
BLOCK = 16


class Watched(list[int]):
    """Counts the elements that leave it."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        Watched.read += len(range(*place.indices(len(self)))) if isinstance(place, slice) else 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[int]:
        Watched.read += len(self)
        return super().__iter__()


def settle(scheduler: Scheduler, plan: StepPlan) -> None:
    """Commit a pass that chose token 1 everywhere and accepted no draft."""
    rows = len(plan.rows)
    ones = torch.ones(rows, 1, dtype=torch.int64)
    outcome = Outcome(torch.full((rows, 0), -1), torch.zeros(rows, dtype=torch.int64), ones, ones.squeeze(1))
    scheduler.commit(plan, PassResult(Draft.empty(rows), outcome, *[(None,) * rows] * 3))


def lines_of(work: Callable[[], None]) -> int:
    """Lines of Python that run."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # what other tests left behind may run code of its own when it goes
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def work_of_passes(context: int, waiting: int, passes: int = 2 * BLOCK) -> tuple[int, int]:
    """Lines run and elements read in so many decode passes of a full batch, beside waiting requests."""
    kv_cache = KVCache(BATCH * 300, BLOCK)
    scheduler = Scheduler(kv_cache, Needs(max_nodes=4), BATCH, 100_000)
    for number in range(BATCH):
        prompt = (number,) * context
        scheduler.add(Request(f"running {number}", prompt, 200, max_draft_tokens=4, deadline=1e9))
    for number in range(waiting):
        scheduler.add(Request(f"waiting {number}", (1, 2, 3), 9, deadline=1e6 + number, priority=-(number % 3)))

    def turn() -> None:
        scheduler.expire(1.0)
        plan, _ = scheduler.plan()
        assert plan is not None and len(plan.rows) == BATCH
        settle(scheduler, plan)

    def turns() -> None:
        for _ in range(passes):
            turn()

    turn()
    for sequence in scheduler._roster.running.values():
        sequence.tokens = Watched(sequence.tokens)
    for table in kv_cache._tables.values():
        table.blocks = Watched(table.blocks)
    Watched.read = 0
    return lines_of(turns), Watched.read


def test_a_pass_costs_the_same_however_many_requests_wait_and_however_long_the_text_is() -> None:
    lines, read = work_of_passes(context=4 * BLOCK, waiting=1)
    assert work_of_passes(context=4 * BLOCK, waiting=3000) == (lines, read)
    assert work_of_passes(context=256 * BLOCK, waiting=1) == (lines, read)
    assert read < BATCH * 2 * BLOCK * 8


@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_a_request_ends_at_the_same_cost_however_many_wait(end: str) -> None:
    def cost(waiting: int) -> int:
        scheduler = Scheduler(KVCache(64, BLOCK), Needs(), BATCH, 64)
        for number in range(waiting):
            scheduler.add(Request(str(number), (1,), 9, deadline=float(1000 - number)))
        last = str(waiting - 1)
        now = 1000.0 - waiting + 1
        ended: list[object] = []
        lines = lines_of(lambda: ended.extend(scheduler.cancel(last) if end == "cancel" else scheduler.expire(now)))
        assert [event.request_id for event in ended] == [last]
        return lines

    assert cost(900) <= cost(9) + 5
