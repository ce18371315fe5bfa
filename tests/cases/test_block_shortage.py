"""Blocks: all come back, whatever happens; and where they are short, everything still ends with the same text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.scripted import (
    Law,
    Result,
    ScriptedProposer,
    chain_law,
    drive,
    greedy,
    hashed_law,
    one_turn,
    random_drafter,
    right_drafter,
    scripted_engine,
    wrong_drafter,
)
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import EngineFault, PromptTooLong
from trtspec.types import Finish, FinishReason, Request

LAW = hashed_law()


def fast_law(vocabulary: int = 16) -> Law:
    """Depends on the length and two earlier tokens, in few steps."""

    def law(prefix: Sequence[int]) -> list[float]:
        logits = [0.0] * vocabulary
        logits[(3 * prefix[-1] + prefix[len(prefix) // 2] + len(prefix)) % (vocabulary - 1)] = 9.0
        return logits

    return law


def half_right_drafter(law: Law) -> ScriptedProposer:
    """Chains whose third token is wrong."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = greedy(law, tokens, min(4, limit))
        if len(chain) > 2:
            chain[2] = (chain[2] + 1) % 15
        return chain, list(range(-1, len(chain) - 1))

    return ScriptedProposer(draw, 4)


@pytest.mark.parametrize("block_tokens", [1, 16, 64])
@pytest.mark.parametrize("drafter", [wrong_drafter, half_right_drafter, right_drafter], ids=["none", "part", "all"])
def test_a_thousand_requests_with_every_end_give_all_blocks_back(drafter, block_tokens: int) -> None:
    """112 requests for each of nine settings. `drive` checks the books after every turn, and the pool at the end."""
    base = fast_law()
    nan = [float("nan")] * 16

    def law(prefix: Sequence[int]) -> Sequence[float]:
        return nan if prefix[0] == 15 and len(prefix) > 9 else base(prefix)

    values = random.Random(block_tokens)
    requests, cancel = [], {}
    for i in range(112):
        kind = ["eos", "stop", "length", "cancel", "error", "deadline"][i % 6]
        prompt = (15 if kind == "error" else i % 15, *(values.randrange(15) for _ in range(values.randrange(8))))
        end = frozenset({greedy(base, prompt, 6)[-1]})
        requests.append(
            Request(
                f"{kind} {i}",
                prompt,
                18,
                eos_ids=end if kind == "eos" else frozenset(),
                stop_ids=end if kind == "stop" else frozenset(),
                deadline=i // 4 + 2.0 if kind == "deadline" else None,
                max_draft_tokens=4,
            )
        )
        if kind == "cancel":
            cancel[f"{kind} {i}"] = i // 4 + values.randrange(5)
    engine, _ = scripted_engine(law, drafter(base), batch=16, blocks=2048 // block_tokens, block_tokens=block_tokens)
    results = drive(engine, requests, join_every=0, cancel=cancel)
    ends = {type(result.error) if result.error else result.finish.reason for result in results.values()}
    assert ends >= {FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED, EngineFault}
    assert engine.stats().free_blocks == engine.stats().total_blocks


def test_rejected_drafts_hold_no_block_between_passes() -> None:
    engine, _ = scripted_engine(LAW, wrong_drafter(LAW, 8), blocks=64, block_tokens=1)
    engine.submit(Request("a", (1, 2, 3), 20, max_draft_tokens=8))
    results = {"a": Result()}
    for turn in range(10):
        one_turn(engine, results, turn, turn)
        assert engine.stats().free_blocks == 64 - (3 + turn), "committed is all but the last token"


def test_drafts_shrink_to_nothing_before_anybody_has_to_go() -> None:
    """The pool holds the committed tokens exactly, so that the last passes cannot draft at all."""
    engine, runner = scripted_engine(LAW, wrong_drafter(LAW, 4), blocks=6, block_tokens=4, context=24)
    result = drive(engine, [Request("a", tuple(range(15)), 9, max_draft_tokens=4)])["a"]
    assert result.ids == greedy(LAW, range(15), 9)
    assert {int(draft.counts[0]) for draft in runner.drafts} >= {0, 4}
    assert engine.stats().preemptions == 0


def test_nobody_has_to_go_while_there_is_a_place_for_one_more_token() -> None:
    """Both texts fill their last block to its last place: there never is a free block, and none is missing."""
    engine, _ = scripted_engine(LAW, NoProposer(), blocks=2, block_tokens=4, context=8)
    requests = [Request("a", (1, 2), 3), Request("b", (3, 4), 3)]
    results = drive(engine, requests)
    assert all(results[item.request_id].ids == greedy(LAW, item.prompt, 3) for item in requests)
    assert engine.stats().preemptions == 0


def test_an_engine_checks_its_books() -> None:
    engine, _ = scripted_engine(LAW, NoProposer())
    engine.submit(Request("a", (1, 2), 3))
    plan, _ = engine.begin(0.0)
    assert plan is not None
    engine.check()
    plan.rows[0].blocks.clear()  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="users are counted wrong"):
        engine.check()


def test_what_the_pool_could_never_hold_is_refused_alone() -> None:
    engine, _ = scripted_engine(LAW, NoProposer(), blocks=4, block_tokens=4, context=100)
    with pytest.raises(PromptTooLong, match="10 prompt tokens and max_tokens 7 exceed 16 positions"):
        engine.submit(Request("large", (1,) * 10, 7))
    assert drive(engine, [Request("fits", (1,) * 10, 6)])["fits"].ids == greedy(LAW, (1,) * 10, 6)


def test_acceptance_stays_perfect_at_every_prompt_length() -> None:
    """Every 61st length, and those around every sixth multiple of the block."""
    law = fast_law()
    lengths = {*range(1, 4097, 61), *(64 * i + d for i in range(1, 64, 6) for d in (-1, 0, 1))}
    for length in sorted(lengths):
        engine, _ = scripted_engine(
            law, right_drafter(law, 4), pass_tokens=4200, blocks=66, block_tokens=64, context=4200
        )
        result = drive(engine, [Request("a", (7,) * length, 11, max_draft_tokens=4)])["a"]
        assert result.stats.acceptance_rate == 1.0, f"at {length} prompt tokens"
        assert len(result.ids) == 11


def test_a_sequence_that_was_pushed_out_with_drafts_pending_comes_back_clean() -> None:
    """It misses rounds, and is fed nothing but its own text when it returns: never a draft and never a placeholder."""
    requests = [Request(str(i), tuple((i + j) % 16 for j in range(8)), 24, max_draft_tokens=4) for i in range(3)]
    engine, runner = scripted_engine(LAW, wrong_drafter(LAW, 4), blocks=18, block_tokens=4, context=32)
    results = drive(engine, requests)
    assert engine.stats().preemptions > 0
    missed = 0
    for number, request in enumerate(requests):
        assert results[request.request_id].ids == greedy(LAW, request.prompt, 24)
        took_part = [plan.pass_index for plan in runner.plans if number in {row.sequence_id for row in plan.rows}]
        missed += took_part[-1] - took_part[0] + 1 - len(took_part)
    assert missed > 0
    text = {number: [*item.prompt, *results[item.request_id].ids] for number, item in enumerate(requests)}
    for plan in runner.plans:
        for row in plan.rows:
            assert list(row.tokens) == text[row.sequence_id][row.start : row.next_position]


@pytest.mark.parametrize("prefix_sharing", [True, False], ids=["sharing", "not sharing"])
def test_sixty_four_requests_in_a_pool_for_a_quarter_of_them(prefix_sharing: bool) -> None:
    """Work that is done again counts once: one prefill token each, and as many tokens as were delivered."""
    law = fast_law()
    requests = [Request(str(i), (i % 16, i // 16, 3), 29, max_draft_tokens=4) for i in range(64)]
    engine, _ = scripted_engine(
        law,
        half_right_drafter(law),
        batch=64,
        pass_tokens=256,
        blocks=128,
        block_tokens=4,
        context=32,
        prefix_sharing=prefix_sharing,
    )
    results = drive(engine, requests)
    assert engine.stats().preemptions > 0
    for request in requests:
        result = results[request.request_id]
        assert result.ids == greedy(law, request.prompt, 29)
        assert (result.stats.prefill_tokens, result.stats.emitted) == (1, 28)
        assert result.finish == Finish(FinishReason.LENGTH)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 5, 8])
def test_small_batches_with_deep_drafts_run(batch: int, depth: int) -> None:
    """Fewer places in a pass than one draft would take included."""
    requests = [Request(str(i), (i, 2), 12, max_draft_tokens=depth) for i in range(4)]
    for pass_tokens in (batch, batch + 2, 64):
        engine, _ = scripted_engine(LAW, random_drafter(LAW, depth), batch=batch, pass_tokens=pass_tokens)
        results = drive(engine, requests)
        assert all(results[item.request_id].ids == greedy(LAW, item.prompt, 12) for item in requests)


def test_requests_up_to_the_end_of_the_context_overlap_in_time() -> None:
    """Blocks are taken as the text grows and not for the longest text that could be."""
    law = chain_law(lambda prefix: 15 if len(prefix) == 9 else 3)
    requests = [Request(str(i), (i, 2), 254, eos_ids=frozenset({15})) for i in range(4)]
    engine, runner = scripted_engine(law, NoProposer(), blocks=64, context=256)
    drive(engine, requests)
    assert [len(plan.rows) for plan in runner.plans] == [4] * 8


@pytest.mark.parametrize("short_by", [0, 1])
def test_a_prompt_that_fills_the_context_is_refused(short_by: int) -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 4), context=40)
    request = Request("a", (1,) * (40 - short_by), 1, max_draft_tokens=4)
    if short_by:
        assert drive(engine, [request])["a"].finish == Finish(FinishReason.LENGTH)
    else:
        with pytest.raises(PromptTooLong, match="exceed 40 positions"):
            engine.submit(request)
