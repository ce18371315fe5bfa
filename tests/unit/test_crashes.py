"""When a crashed engine is started again, and which requests are not tried again."""

from __future__ import annotations

from dataclasses import replace

from trtspec.executors.crashes import WINDOW_SECONDS, CrashHistory
from trtspec.types import Request

POISON = Request("a", (1, 2, 3), 8, seed=1)


def test_three_crashes_within_the_window_are_enough() -> None:
    history = CrashHistory()
    backoffs = []
    for now in (0.0, 100.0, 200.0):
        assert not history.exhausted
        history.record(now, [])
        backoffs.append(history.backoff_seconds)
    assert history.exhausted
    assert backoffs == [0.5, 1.0, 2.0]


def test_old_crashes_are_forgotten() -> None:
    history = CrashHistory()
    for now in (0.0, WINDOW_SECONDS, 2 * WINDOW_SECONDS + 1, 3 * WINDOW_SECONDS + 2):
        history.record(now, [POISON])
        assert not history.exhausted
    assert not history.suspects(POISON, 5 * WINDOW_SECONDS)


def test_a_request_in_flight_in_two_crashes_is_suspected_whatever_its_id_and_seed() -> None:
    history = CrashHistory()
    history.record(0.0, [POISON, Request("b", (9,), 8)])
    assert not history.suspects(POISON, 1.0)
    history.record(1.0, [replace(POISON, request_id="again", seed=2)])
    assert history.suspects(replace(POISON, request_id="third", seed=3), 2.0)
    assert not history.suspects(Request("b", (9,), 8), 2.0)
