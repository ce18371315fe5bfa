"""Requests that begin alike share blocks: less is computed, and nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.scripted import (
    Result,
    ScriptedProposer,
    drive,
    greedy,
    hashed_law,
    one_turn,
    random_drafter,
    record,
    right_drafter,
    scripted_engine,
)
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import EngineFault
from trtspec.types import Request

LAW = hashed_law()
LONG = tuple((i * i + i // 7) % 16 for i in range(1000))


@pytest.mark.parametrize("drafter", [right_drafter, random_drafter, lambda law: NgramProposer(4)])
def test_a_long_prefix_is_computed_once_and_nothing_else_changes(drafter) -> None:
    """1,000 tokens in blocks of 16: the second time all full blocks are found."""
    engine, runner = scripted_engine(LAW, drafter(LAW), pass_tokens=1200, blocks=160, block_tokens=16, context=1100)
    request = Request("first", LONG, 20, max_draft_tokens=4)
    first = drive(engine, [request])["first"]
    fed_first = sum(row.fed for plan in runner.plans for row in plan.rows)
    second = drive(engine, [replace(request, request_id="second")])["second"]
    assert (first.cached_tokens, second.cached_tokens) == (0, 992)
    assert sum(row.fed for plan in runner.plans for row in plan.rows) - fed_first <= fed_first - 992
    assert second.ids == first.ids == greedy(LAW, LONG, 20)
    assert (second.stats.acceptance_rate or 0) >= (first.stats.acceptance_rate or 0) - 1e-9 or drafter is random_drafter


@pytest.mark.parametrize("prefix_sharing", [True, False])
@pytest.mark.parametrize("join_every", [0, 1, 30])
def test_the_same_prompt_in_turn_and_at_once(prefix_sharing: bool, join_every: int) -> None:
    """Together, a pass apart, and each after the one before has ended."""
    engine, _ = scripted_engine(LAW, random_drafter(LAW, 4), prefix_sharing=prefix_sharing)
    requests = [Request(str(i), LONG[:21], 20, max_draft_tokens=4) for i in range(3)]
    results = drive(engine, requests, join_every=join_every)
    assert all(result.ids == greedy(LAW, LONG[:21], 20) for result in results.values())
    found = [results[str(i)].cached_tokens for i in range(3)]
    assert found == ([0, 20, 20] if prefix_sharing and join_every else [0, 0, 0])


def test_rejected_drafts_are_never_found() -> None:
    """A ends with drafts rejected after its last token. Eight requests go on from A's text as if they had been kept."""
    tails: list[list[int]] = []

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = greedy(LAW, tokens, 1) + [(token + 1) % 16 for token in greedy(LAW, tokens, 8)[1:]]
        tails.append([*tokens, *chain])
        return chain, list(range(-1, 7))

    engine, _ = scripted_engine(LAW, ScriptedProposer(draw), blocks=200, block_tokens=2)
    stop = greedy(LAW, LONG[:9], 11)[-1]
    first = drive(engine, [Request("a", LONG[:9], 30, eos_ids=frozenset({stop}), max_draft_tokens=8)])["a"]
    text = [*LONG[:9], *first.ids]
    tail = max(tails, key=len)
    assert first.passes[-1].accepted < first.passes[-1].drafted or first.passes[-1].cut
    assert len(tail) > len(text)
    prompts = [(*text, *tail[len(text) :], extra) for extra in range(8)]
    requests = [Request(str(extra), prompt, 12) for extra, prompt in enumerate(prompts)]
    results = drive(engine, requests)
    for request in requests:
        plain, _ = scripted_engine(LAW, NoProposer(), prefix_sharing=False)
        result = results[request.request_id]
        assert result.cached_tokens is not None and result.cached_tokens <= len(text)
        assert result.ids == drive(plain, [request])[request.request_id].ids
    assert results["0"].cached_tokens >= len(text) - 3


def test_generated_text_is_found_too() -> None:
    """A dialogue goes on: the next prompt holds the last answer, drafts of which were accepted out of place."""
    engine, _ = scripted_engine(LAW, random_drafter(LAW, 4))
    answer = drive(engine, [Request("a", LONG[:10], 30, max_draft_tokens=4)])["a"].ids
    prompt = (*LONG[:10], *answer, 3, 4, 5)
    result = drive(engine, [Request("b", prompt, 10, max_draft_tokens=4)])["b"]
    assert result.cached_tokens == 36, "39 tokens were committed, in blocks of 4"
    assert result.ids == greedy(LAW, prompt, 10)


def test_a_prompt_under_way_is_found_chunk_by_chunk() -> None:
    engine, _ = scripted_engine(LAW, NoProposer(), pass_tokens=16)
    requests = [Request("early", LONG[:60], 4), Request("late", LONG[:60], 4)]
    results = drive(engine, requests, join_every=3)
    assert results["late"].cached_tokens is not None and 28 <= results["late"].cached_tokens <= 56
    assert results["late"].ids == results["early"].ids == greedy(LAW, LONG[:60], 4)


def test_tenants_never_find_each_others_blocks() -> None:
    engine, _ = scripted_engine(LAW, NoProposer())
    found = []
    for name, tenant in enumerate(["a", "b", "a", "", "b"]):
        request = Request(str(name), LONG[:33], 4, tenant=tenant)
        found.append(drive(engine, [request])[str(name)].cached_tokens)
    assert found == [0, 0, 32, 0, 32]


def test_blocks_that_only_rest_are_given_away_when_others_need_them() -> None:
    """They count as free. The end of the text that was unused longest goes first, and its beginning is still found."""
    engine, _ = scripted_engine(LAW, NoProposer(), blocks=16, context=64)
    old, new = LONG[:25], LONG[100:125]
    for name, prompt in (("old", old), ("new", new)):
        drive(engine, [Request(name, prompt, 3)])
    assert engine.stats().free_blocks == 16
    drive(engine, [Request("large", LONG[200:229], 4)])  # nine blocks, of which four never held anything
    found = {
        name: drive(engine, [Request(name, prompt, 1)])[name].cached_tokens
        for name, prompt in (("new", new), ("old", old))
    }
    assert found["new"] == 24
    assert found["old"] is not None and 0 < found["old"] < 24


def test_who_was_pushed_out_finds_what_nobody_took() -> None:
    """The first one needs a block; the second one comes back and computes only what was given away. Its prompt was
    scored and told before."""
    engine, runner = scripted_engine(LAW, NoProposer(), blocks=17, block_tokens=4, context=68)
    requests = [Request(name, LONG[start : start + 28], 14, prompt_logprobs=0) for name, start in (("a", 0), ("b", 50))]
    results = drive(engine, requests)
    assert engine.stats().preemptions > 0
    assert all(results[item.request_id].ids == greedy(LAW, item.prompt, 14) for item in requests)
    again = [row for plan in runner.plans for row in plan.rows if not row.prefill and row.fed > 1]
    assert again and all(row.start > 0 for row in again)


def test_scored_prompts_are_computed_whole_and_still_found_by_others() -> None:
    engine, runner = scripted_engine(LAW, NoProposer())
    request = Request("a", LONG[:21], 5, prompt_logprobs=0)
    for name in ("a", "b"):
        result = drive(engine, [replace(request, request_id=name)])[name]
        assert result.cached_tokens == 0
        assert [item.chosen.token_id for item in result.outputs[0].prompt_logprobs] == list(LONG[:21])
    assert drive(engine, [Request("c", LONG[:21], 5)])["c"].cached_tokens == 20


@pytest.mark.parametrize("blocks", [64, 15])
def test_a_scored_prompt_is_told_once_whatever_its_chunks(blocks: int) -> None:
    """Prefilled in chunks; with few blocks pushed out in mid-prompt and scored again from its start."""
    engine, runner = scripted_engine(LAW, NoProposer(), pass_tokens=8, blocks=blocks, block_tokens=4, context=60)
    requests = [
        Request("other", LONG[50:70], 30, priority=1),
        Request("scored", LONG[:40], 6, logprobs=2, prompt_logprobs=2),
    ]
    results = drive(engine, requests)
    whole, _ = scripted_engine(LAW, NoProposer(), prefix_sharing=False)
    expected = drive(whole, [requests[1]])["scored"].outputs[0]
    told = results["scored"].outputs[0]
    assert told.prompt_logprobs == expected.prompt_logprobs and len(told.prompt_logprobs) == 40
    assert told.prompt_logprobs[0].chosen.logprob is None
    assert told.logprobs == expected.logprobs and len(told.logprobs) == 6
    starts = [row.start for plan in runner.plans for row in plan.rows if row.sequence_id == 1 and row.prefill]
    assert len(starts) >= 5 and (starts.count(0) == 2) == (blocks == 15)


def test_blocks_that_led_to_nonsense_are_not_handed_on() -> None:
    """The logits after the second request's prompt are no numbers, so what was cached of it is computed again."""
    broken = [False]

    def law(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16 if broken[0] else LAW(prefix)

    engine, _ = scripted_engine(law, NoProposer())
    drive(engine, [Request("a", LONG[:21], 2)])
    broken[0] = True
    assert isinstance(drive(engine, [Request("b", LONG[:21], 2)])["b"].error, EngineFault)
    broken[0] = False
    result = drive(engine, [Request("c", LONG[:21], 2)])["c"]
    assert (result.cached_tokens, result.ids) == (0, greedy(LAW, LONG[:21], 2))


@pytest.mark.parametrize("end", ["cancel", "preempt"])
def test_a_block_with_copies_still_to_come_is_whole_when_it_is_found(end: str) -> None:
    """The path lies scattered, so that the commit leaves copies; their sequence is gone before the next pass."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        first, second, third = greedy(LAW, tokens, 3)
        wrong = [item for item in range(16) if item not in (first, second, third)]
        return [wrong[0], first, wrong[1], second, wrong[2], third], [-1, -1, 1, 1, 3, 3]

    engine, runner = scripted_engine(LAW, ScriptedProposer(draw), batch=1 if end == "preempt" else 4)
    results = {name: Result() for name in "ab"}
    engine.submit(Request("a", LONG[:8], 40, max_draft_tokens=3))
    one_turn(engine, results, 0.0)
    one_turn(engine, results, 0.0)
    text = [*LONG[:8], *results["a"].ids]
    assert len(text) == 13
    if end == "cancel":
        record(results, engine.cancel("a"), 2)
    else:
        sequence = next(iter(engine._scheduler._roster.running.values()))
        engine._scheduler.kv_cache.release(sequence.sequence_id)
        engine._scheduler._roster.preempt(sequence)
    engine.submit(Request("b", tuple(text), 5, priority=1))
    begun = engine.begin(0.0)
    assert begun.plan is not None and begun.plan.copies
    record(results, begun.events, 2)
    record(results, engine.finish(begun.plan), 2)
    while not engine.idle:
        one_turn(engine, results, 0.0)
        engine.check()
    assert results["b"].cached_tokens == 12
    assert results["b"].ids == greedy(LAW, text, 5)
