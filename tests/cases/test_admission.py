"""Who joins when: priority over prompts under way, outputs of one request, and what one request's fault leaves."""

from __future__ import annotations

from tests.scripted import ScriptedProposer, chain_law, drive, hashed_law, scripted_engine
from trtspec.errors import InvalidField
from trtspec.types import Request, SamplingParams

NOTHING = ScriptedProposer(lambda tokens, limit: ([], []))


def test_an_urgent_request_joins_before_a_long_prompt_under_way() -> None:
    engine, runner = scripted_engine(hashed_law(), NOTHING, pass_tokens=16, blocks=128)
    long, urgent = Request("long", tuple(range(10)) * 16, 4), Request("urgent", (1, 2, 3), 4, priority=5)
    results = drive(engine, [long, urgent], join_every=2)
    joined = results["urgent"].started_turn
    assert joined is not None and joined <= 3
    assert results["urgent"].first_token_pass == joined
    assert (results["long"].first_token_pass or 0) > 9


def test_a_request_of_equal_priority_waits_behind_a_prompt_under_way() -> None:
    engine, _ = scripted_engine(hashed_law(), NOTHING, pass_tokens=16, blocks=128)
    long, later = Request("long", tuple(range(10)) * 16, 4), Request("later", (1, 2, 3), 4)
    results = drive(engine, [long, later], join_every=2)
    assert (results["later"].started_turn or 0) > 8


def test_an_end_id_that_cannot_be_emitted_does_no_harm() -> None:
    engine, _ = scripted_engine(chain_law(lambda prefix: 3), NOTHING)
    sampling = SamplingParams(min_tokens=3)
    request = Request("r", (1,), 6, sampling=sampling, eos_ids=frozenset({3, 99}))
    ids = drive(engine, [request])["r"].ids
    assert len(ids) >= 4 and 3 not in ids[:3] and ids[3] == 3


def test_forbidding_every_token_does_not_cost_others_their_prefix() -> None:
    engine, _ = scripted_engine(hashed_law(), NOTHING)
    prompt = tuple(range(12))
    drive(engine, [Request("first", prompt, 2)])
    nothing_left = SamplingParams(bad_words=tuple((token,) for token in range(16)))
    failed = drive(engine, [Request("mistaken", prompt, 2, sampling=nothing_left)])["mistaken"]
    assert isinstance(failed.error, InvalidField)
    engine.submit(Request("next", prompt, 2))
    started = engine.begin(0.0).events[0]
    assert getattr(started, "cached_tokens", None) == 8


def test_outputs_that_share_no_block_start_together() -> None:
    engine, runner = scripted_engine(hashed_law(), NOTHING)
    drive(engine, [Request("r", (1, 2, 3), 2, n=3)])
    assert len(runner.plans[0].rows) == 3


def test_outputs_of_a_long_prompt_wait_for_the_first() -> None:
    engine, runner = scripted_engine(hashed_law(), NOTHING)
    drive(engine, [Request("r", tuple(range(12)), 2, n=3)])
    assert [len(plan.rows) for plan in runner.plans[:2]] == [1, 3]
    assert [row.fed for row in runner.plans[1].rows[1:]] == [4, 4]
