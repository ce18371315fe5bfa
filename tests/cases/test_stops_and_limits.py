"""Where an output ends inside an accepted run, and what counts."""

from __future__ import annotations

import pytest

from tests.scripted import chain_law, drive, greedy, hashed_law, random_drafter, right_drafter, scripted_engine
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.errors import InvalidField, PromptTooLong
from trtspec.types import Finish, FinishReason, Request

EOS = 15
LAW = hashed_law()


def counting_law(eos_at: int):
    """Text 1, 2, 3, ... from a prompt of one token, with EOS as the token at position `eos_at`."""
    return chain_law(lambda prefix: EOS if len(prefix) == eos_at else len(prefix) % 14)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("eos_ids", [frozenset({EOS}), frozenset({EOS, 14})])
def test_eos_inside_an_accepted_run_ends_the_output_there(index: int, eos_ids: frozenset[int]) -> None:
    """After the first token, five tokens come in one pass; EOS stands at each of their places."""
    law = counting_law(eos_at=2 + index)
    engine, runner = scripted_engine(law, right_drafter(law, 5))
    result = drive(engine, [Request("a", (0,), 40, eos_ids=eos_ids, max_draft_tokens=5)])["a"]
    assert result.ids == greedy(law, (0,), index + 2)
    assert result.ids[-1] == EOS and EOS not in result.ids[:-1]
    assert result.finish == Finish(FinishReason.EOS, EOS)
    assert result.stats.completion_tokens == len(result.ids)
    assert len(runner.plans) == (2 if index < 6 else 3)
    last = result.passes[-1]
    assert last.cut and last.emitted == index + 1 and last.accepted == min(index + 1, 5)


def test_eos_copied_from_the_prompt_by_lookup_ends_the_output() -> None:
    law = chain_law(lambda prefix: [3, 4, EOS][(len(prefix) - 5) % 3])
    engine, _ = scripted_engine(law, NgramProposer(8))
    result = drive(engine, [Request("a", (3, 4, EOS, 3, 4), 40, eos_ids=frozenset({EOS}), max_draft_tokens=8)])["a"]
    assert result.ids == [3, 4, EOS]


def test_stop_ids_of_the_request_are_told_apart_from_eos() -> None:
    law = counting_law(eos_at=9)
    request = Request("a", (0,), 40, eos_ids=frozenset({EOS}), stop_ids=frozenset({4}), max_draft_tokens=5)
    engine, _ = scripted_engine(law, right_drafter(law, 5))
    result = drive(engine, [request])["a"]
    assert (result.ids, result.finish) == ([1, 2, 3, 4], Finish(FinishReason.STOP, 4))


def test_without_eos_ids_generation_goes_on_past_them() -> None:
    """`ignore_eos` reaches the engine as an empty set; the last vocabulary id stays available."""
    law = counting_law(eos_at=3)
    engine, _ = scripted_engine(law, right_drafter(law, 5))
    result = drive(engine, [Request("a", (0,), 8, max_draft_tokens=5)])["a"]
    assert EOS in result.ids and len(result.ids) == 8


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_exactly_max_tokens_come_back(max_tokens: int) -> None:
    """Every budget from one token to more than two full steps of four."""
    engine, runner = scripted_engine(LAW, right_drafter(LAW, 4))
    result = drive(engine, [Request("a", (1, 2), max_tokens, max_draft_tokens=4)])["a"]
    assert result.ids == greedy(LAW, (1, 2), max_tokens)
    assert result.finish == Finish(FinishReason.LENGTH)
    assert result.stats.completion_tokens == max_tokens
    deepest = max(plan.rows[0].next_position + plan.rows[0].max_depth for plan in runner.plans)
    assert deepest <= 2 + max_tokens, "a draft past the budget was verified"


def test_the_token_of_the_prefill_is_delivered_and_can_end_the_output() -> None:
    law = counting_law(eos_at=3)
    for prompt, expected in (((0,), [1]), ((0, 1, 2), [EOS])):
        engine, _ = scripted_engine(law, right_drafter(law, 4))
        result = drive(engine, [Request("a", prompt, 1, eos_ids=frozenset({EOS}), max_draft_tokens=4)])["a"]
        assert result.ids == expected
        assert result.stats.prefill_tokens == 1 and result.stats.decode_passes == 0
    assert result.finish == Finish(FinishReason.EOS, EOS), "EOS beats LENGTH at the last token"


@pytest.mark.parametrize("short_by", [1, 2, 4, 5])
def test_the_last_positions_of_the_context_are_used_and_not_exceeded(short_by: int) -> None:
    context = 40
    prompt = tuple(i % 16 for i in range(context - short_by))
    engine, runner = scripted_engine(LAW, random_drafter(LAW, 4), context=context)
    result = drive(engine, [Request("a", prompt, short_by, max_draft_tokens=4)])["a"]
    assert len(result.ids) == short_by
    for plan, draft in zip(runner.plans, runner.drafts, strict=True):
        assert plan.rows[0].next_position + plan.rows[0].max_depth <= context
        assert (draft.counts <= plan.rows[0].max_nodes).all()


def test_what_cannot_run_is_refused_before_it_is_queued() -> None:
    engine, _ = scripted_engine(LAW, NgramProposer(4), context=20)
    with pytest.raises(PromptTooLong, match="18 prompt tokens and max_tokens 3 exceed 20"):
        engine.submit(Request("a", (1,) * 18, 3))
    wrong = {
        "prompt is empty": Request("a", (), 1000),
        "max_tokens is 0": Request("a", (1,), 0),
        "token_ids is 1..16; allowed is 0..15": Request("a", (1, 16), 3),
        "token_ids is -1..2; allowed is 0..15": Request("a", (-1, 2), 3),
    }
    for message, request in wrong.items():
        with pytest.raises(InvalidField, match=message):
            engine.submit(request)
    with pytest.raises(InvalidField, match="max_draft_tokens is 65; allowed is 0..64"):
        engine.submit(Request("a", (1,), 3, max_draft_tokens=65))
    assert engine.idle
