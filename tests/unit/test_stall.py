"""Silence of an engine: what counts as it, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trtspec.executors import stall
from trtspec.executors.stall import StallWatch


class Looks:
    """Stands for time: something may happen at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.pauses: list[float] = []
        self.happens: Callable[[int], None] = lambda look: None
        monkeypatch.setattr(stall.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.count += 1
        self.pauses.append(seconds)
        self.happens(self.count)
        if self.count > 1000:
            raise asyncio.CancelledError


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


async def test_silence_over_work_is_noticed_after_the_bound_and_not_before(looks: Looks) -> None:
    await StallWatch(60).stalled(lambda: True)
    assert (looks.count, set(looks.pauses)) == (60, {1.0})


async def test_a_short_bound_is_looked_at_often(looks: Looks) -> None:
    await StallWatch(2).stalled(lambda: True)
    assert looks.count == 20 and sum(looks.pauses) == pytest.approx(2)


async def test_an_idle_engine_is_healthy_and_the_bound_begins_with_its_work(looks: Looks) -> None:
    await StallWatch(60).stalled(lambda: looks.count > 500)
    assert looks.count == 560


async def test_every_sign_begins_the_bound_anew(looks: Looks) -> None:
    watch = StallWatch(60)

    def happens(look: int) -> None:
        if look % 50 == 0 and look <= 500:
            watch.sign()

    looks.happens = happens
    await watch.stalled(lambda: True)
    assert looks.count == 560
