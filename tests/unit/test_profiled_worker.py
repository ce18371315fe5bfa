"""The stopwatch of the profile: phases inside phases, and idle time at the ends."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.bench.profiled_worker import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.stopwatch = Stopwatch(lambda: self.now)

    def spend(self, phase: str, seconds: float, inside: Sequence[tuple[str, float]] = ()) -> None:
        with self.stopwatch.phase(phase):
            self.now += seconds
            for name, more in inside:
                self.spend(name, more)

    def turn(self, *, idle: float = 0.0) -> None:
        self.spend("idle", idle)
        self.spend("plan", 1)
        self.spend("forward", 5)
        self.spend("commit", 2)
        self.spend("publish", 1)


def test_a_phase_inside_another_counts_once() -> None:
    clock = Clock()
    clock.spend("plan", 1)
    clock.spend("forward", 5, inside=[("propose", 2), ("choose", 1)])
    clock.spend("publish", 1)
    profile = clock.stopwatch.profile
    assert (profile.seconds["forward"], profile.seconds["propose"], profile.seconds["choose"]) == (5, 2, 1)
    assert profile.span == 10 and profile.passes == 1


def test_waiting_before_the_first_pass_and_after_the_last_is_not_idle_time() -> None:
    clock = Clock()
    clock.turn(idle=100)
    clock.turn(idle=3)
    clock.spend("idle", 50)
    clock.spend("publish", 1)
    profile = clock.stopwatch.profile
    assert profile.seconds["idle"] == 3
    assert profile.seconds["forward"] == 10 and profile.passes == 2
    assert profile.span == 9 + 3 + 9
