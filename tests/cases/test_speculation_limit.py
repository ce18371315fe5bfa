"""A limit of drafts that changes while requests run: passes keep to it at once, and no text notices."""

from __future__ import annotations

import random

import pytest

from tests.scripted import (
    Result,
    greedy,
    hashed_law,
    one_turn,
    random_drafter,
    record,
    right_drafter,
    scripted_engine,
)
from trtspec.decoding.engine import Engine
from trtspec.decoding.proposer import Needs
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import FinishReason, Request, SamplingParams, Started

LAW = hashed_law()
PROMPT = (1, 2, 3, 4, 5, 6)
OFF = SpeculationLimit(0)


def ask(name: str = "a", **changes: object) -> Request:
    return Request(name, PROMPT, **{"max_tokens": 40, "max_draft_tokens": 4, **changes})


def turned(engine: Engine, requests: list[Request], limits: dict[int, SpeculationLimit]) -> dict[str, Result]:
    """Turn to the end, with limits set before given turns."""
    results = {request.request_id: Result() for request in requests}
    for request in requests:
        engine.submit(request)
    turn = 0
    while not engine.idle:
        if turn in limits:
            engine.limit(limits[turn])
        one_turn(engine, results, 0.0, turn)
        engine.check()
        turn += 1
    return results


def test_a_cap_holds_from_the_next_pass_on_and_restoring_ends_it() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW))
    limits = {3: SpeculationLimit(2), 5: OFF, 7: NO_LIMIT}
    result = turned(engine, [ask()], limits)["a"]
    assert [item.drafted for item in result.passes[:9]] == [0, 4, 4, 2, 2, 0, 0, 4, 4]
    assert result.ids == greedy(LAW, PROMPT, 40)
    assert result.stats.spec_steps < result.stats.decode_passes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_no_text_depends_on_limits_that_come_and_go(seed: int, temperature: float) -> None:
    values = random.Random(seed)
    sampling = SamplingParams(temperature=temperature, top_k=6)
    requests = [ask(f"r{i}", seed=i, n=1 + i % 2, sampling=sampling, max_tokens=12 + 5 * i) for i in range(5)]
    limits = {turn: SpeculationLimit(values.choice([None, 0, 1, 2, 3])) for turn in range(0, 60, 2)}
    plain, _ = scripted_engine(LAW, right_drafter(LAW), batch=3)
    expected = turned(plain, requests, {0: OFF})
    engine, _ = scripted_engine(LAW, random_drafter(LAW, seed=seed), batch=3)
    got = turned(engine, requests, limits)
    for name, result in expected.items():
        assert [got[name].outputs[i].ids for i in result.outputs] == [item.ids for item in result.outputs.values()]
        assert all(not item.drafted for output in result.outputs.values() for item in output.passes)
    assert any(item.drafted for result in got.values() for output in result.outputs.values() for item in output.passes)


@pytest.mark.parametrize(
    ("limit", "told"), [(NO_LIMIT, None), (SpeculationLimit(4), None), (SpeculationLimit(3), 3), (OFF, 0)]
)
def test_a_request_is_told_how_deep_its_drafts_are_where_that_is_less_than_it_asks_for(
    limit: SpeculationLimit, told: int | None
) -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW))
    engine.limit(limit)
    engine.submit(ask())
    assert engine.begin(0.0).events == (Started("a", 0, told),)
    assert engine.stats().limit == limit


def test_a_request_that_begins_while_speculation_is_off_is_plain_to_its_end() -> None:
    drafter = right_drafter(LAW)
    engine, _ = scripted_engine(LAW, drafter)
    result = turned(engine, [ask()], {0: OFF, 4: NO_LIMIT})["a"]
    assert all(item.drafted == 0 for item in result.passes)
    # What a drafter goes by to keep up with a request: it need not with this one.
    assert not any(advance.request.drafts for view in drafter.views for advance in view.advances)


def test_blocks_of_a_request_that_was_made_plain_are_not_found_by_one_that_drafts() -> None:
    drafter = right_drafter(LAW)
    drafter.needs = Needs(4, caches=True)
    engine, _ = scripted_engine(LAW, drafter)
    turned(engine, [ask("off")], {0: OFF})
    again = turned(engine, [ask("on")], {0: NO_LIMIT})["on"]
    assert again.cached_tokens == 0
    assert turned(engine, [ask("off again")], {0: OFF})["off again"].cached_tokens == 4


def test_what_was_queued_while_speculation_was_off_drafts_if_it_starts_after_that() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW), batch=1)
    results = turned(engine, [ask("first", max_tokens=5), ask("second")], {0: OFF, 3: NO_LIMIT})
    assert not any(item.drafted for item in results["first"].passes)
    assert any(item.drafted for item in results["second"].passes)


def test_what_found_no_room_while_speculation_was_off_drafts_if_it_starts_after_that() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW), blocks=8)
    prompt = (*PROMPT[::-1] * 4, 7, 7, 7, 7)
    long = Request("long", prompt, max_tokens=4, max_draft_tokens=4)
    results = turned(engine, [ask("first", max_tokens=8), long], {0: OFF, 3: NO_LIMIT})
    assert not any(item.drafted for item in results["first"].passes)
    assert any(item.drafted for item in results["long"].passes)
    assert results["long"].ids == greedy(LAW, prompt, 4)


def test_all_outputs_of_a_request_are_plain_where_the_first_one_began_plain() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW))
    result = turned(engine, [ask(n=2)], {0: OFF, 1: NO_LIMIT})["a"]  # the second one waits for the first one's prompt
    assert not any(item.drafted for output in result.outputs.values() for item in output.passes)
    assert [output.ids for output in result.outputs.values()] == [greedy(LAW, PROMPT, 40)] * 2


def test_a_request_that_was_made_plain_can_be_cancelled() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW))
    engine.limit(OFF)
    results = {"a": Result()}
    engine.submit(ask())
    one_turn(engine, results, 0.0)
    record(results, engine.cancel("a"), 1)
    finish = results["a"].finish
    assert finish and finish.reason is FinishReason.CANCELLED and engine.idle
