"""What happens to one request never shows in another one: drafts of any length, aborts, and failures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from tests.scripted import Law, Result, drive, greedy, hashed_law, one_turn, record, right_drafter, scripted_engine
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import EngineFault
from trtspec.types import FinishReason, Request

LAW = hashed_law()


def test_rows_with_and_without_drafts_in_every_order() -> None:
    """Draft lengths 4, 0, 2, 0, 1: each row's ids and acceptance are those of its solo run, wherever it stands."""
    requests = {
        depth_at: Request(str(depth_at), (depth_at, 1), 6, max_draft_tokens=depth)
        for depth_at, depth in enumerate([4, 0, 2, 0, 1])
    }
    alone = {}
    for request in requests.values():
        engine, _ = scripted_engine(LAW, right_drafter(LAW, 4))
        alone[request.request_id] = drive(engine, [request])[request.request_id]
    for order in itertools.permutations(requests.values()):
        engine, runner = scripted_engine(LAW, right_drafter(LAW, 4))
        together = drive(engine, list(order))
        assert sorted(runner.drafts[1].counts.tolist()) == [0, 0, 1, 2, 4]
        for name, solo in alone.items():
            assert together[name].ids == solo.ids
            assert [item.accepted for item in together[name].passes] == [item.accepted for item in solo.passes]


@pytest.mark.parametrize("turn", [0, 1, 3])
def test_an_abort_between_a_pass_and_its_result(turn: int) -> None:
    """The pass is on its way when its request is cancelled and its id is used again: the new one gets nothing of it,
    and its counters start at zero."""
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 4))
    old, new, other = (
        Request("a", (1, 2, 3, 4), 60, max_draft_tokens=4),
        Request("a", (9,), 12, max_draft_tokens=4),
        "b",
    )
    results = {"a": Result(), other: Result()}
    engine.submit(old)
    engine.submit(Request(other, (5, 6), 30, max_draft_tokens=4))
    for number in range(turn):
        one_turn(engine, results, number, number)
    begun = engine.begin(0.0)
    record(results, begun.events, turn)
    record(results, engine.cancel("a"), turn)
    assert results["a"].finish is not None and results["a"].finish.reason is FinishReason.CANCELLED
    results["a"] = Result()
    engine.submit(new)
    assert begun.plan is not None
    events = engine.finish(begun.plan)
    assert {event.request_id for event in events} == {"b"}
    record(results, events, turn)
    while not engine.idle:
        one_turn(engine, results, 0.0, turn + 1)
        engine.check()
    solo, _ = scripted_engine(LAW, right_drafter(LAW, 4))
    expected = drive(solo, [new])["a"]
    assert results["a"].ids == expected.ids
    assert results["a"].stats == expected.stats
    assert results["b"].ids == greedy(LAW, (5, 6), 30)


def test_the_deadline_of_a_request_that_ended_ends_no_other_one() -> None:
    """A queued request is cancelled, and its id is used again, by a request that may take as long as it likes."""
    engine, _ = scripted_engine(LAW, NoProposer(), batch=1)
    engine.submit(Request("runs", (1,), 20))
    engine.submit(Request("a", (2,), 5, deadline=3.0))
    engine.cancel("a")
    engine.submit(Request("a", (3,), 5))
    results = {"runs": Result(), "a": Result()}
    for turn in range(30):
        one_turn(engine, results, turn, turn)
    assert results["a"].ids == greedy(LAW, (3,), 5)


def test_a_long_prompt_that_comes_first_in_order_does_not_stall_decoding() -> None:
    engine, runner = scripted_engine(LAW, NoProposer(), pass_tokens=8)
    requests = [Request("decodes", (1,), 20), Request("long", tuple(i % 16 for i in range(60)), 3, priority=1)]
    results = drive(engine, requests, join_every=2)
    assert [item.pass_index for item in results["decodes"].passes] == list(range(20))
    assert len([plan for plan in runner.plans if len(plan.rows) == 2]) >= 9


def nan_for(first: int) -> Law:
    def law(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16 if prefix[0] == first and len(prefix) > 4 else LAW(prefix)

    return law


def test_one_of_sixty_four_requests_fails_and_nothing_stays_behind() -> None:
    engine, _ = scripted_engine(nan_for(15), NoProposer(), batch=64, pass_tokens=128, blocks=512)
    requests = [Request(str(i), (15, 1) if i == 20 else (i % 15, i // 15), 8) for i in range(64)]
    results = drive(engine, requests)
    assert isinstance(results["20"].error, EngineFault)
    good = [request for request in requests if request.request_id != "20"]
    assert all(results[item.request_id].ids == greedy(LAW, item.prompt, 8) for item in good)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.total_blocks)
    assert drive(engine, [Request("20", (3,), 8)])["20"].ids == greedy(LAW, (3,), 8)
