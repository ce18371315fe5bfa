"""In-flight batching: who joins, who leaves, who waits, and that nothing is lost."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from tests.scripted import (
    Law,
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
    wrong_drafter,
)
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.errors import DeadlineExceeded, DuplicateRequest, EngineFault
from trtspec.types import Finish, FinishReason, Request, SamplingParams, Started, StepOutput

LAW = hashed_law()


def test_a_late_request_gets_its_first_token_before_an_early_one_ends() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 2))
    results = drive(engine, [Request("early", (1,), 60), Request("late", (2,), 5)], join_every=5)
    assert results["late"].first_token_pass is not None
    assert results["early"].passes[0].pass_index < results["late"].first_token_pass
    assert results["late"].first_token_pass < results["early"].passes[-1].pass_index
    shared = {item.pass_index for item in results["early"].passes} & {
        item.pass_index for item in results["late"].passes
    }
    assert len(shared) == 5, "the two were not decoded in the same passes"


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    """The chunked request emits nothing and drafts nothing until its last chunk; its neighbour never waits."""
    prompt = tuple(i % 16 for i in range(100))
    engine, runner = scripted_engine(LAW, random_drafter(LAW, 4), pass_tokens=40)
    requests = [Request("decoding", (1,), 30, max_draft_tokens=4), Request("long", prompt, 5, max_draft_tokens=4)]
    results = drive(engine, requests, join_every=2)
    assert results["long"].ids == greedy(LAW, prompt, 5)
    assert results["decoding"].ids == greedy(LAW, (1,), 30)
    chunks = [row for plan in runner.plans for row in plan.rows if len(row.history) >= 100 and not row.samples]
    assert len(chunks) >= 2
    assert all(row.max_depth == 0 for row in chunks)
    for plan in runner.plans:
        assert sum(row.fed + row.max_nodes for row in plan.rows) <= 40
    both = [plan for plan in runner.plans if any(not row.samples for row in plan.rows) and len(plan.rows) == 2]
    assert both, "prefill chunks and decoding never shared a pass"


def test_cancelling_one_frees_its_blocks_while_others_go_on() -> None:
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 4))
    for name in ("a", "b"):
        engine.submit(Request(name, tuple(range(12)), 60, max_draft_tokens=4))
    results = {"a": Result(), "b": Result()}
    for turn in range(3):
        one_turn(engine, results, turn, turn)
    before = engine.stats().free_blocks
    record(results, engine.cancel("a"), 3)
    assert engine.stats().free_blocks > before
    assert results["a"].finish == Finish(FinishReason.CANCELLED)
    assert engine.cancel("a") == (), "a second cancel is no error"
    while not engine.idle:
        one_turn(engine, results, 9, 9)
        engine.check()
    assert results["b"].ids == greedy(LAW, tuple(range(12)), 60)
    assert engine.stats().free_blocks == engine.stats().total_blocks


@pytest.mark.parametrize("at", [0, 1, 2, 5, 200])
def test_cancel_at_any_point(at: int) -> None:
    """Queued, in prefill, in mid-decoding, and after the end; the neighbour never changes."""
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 4), batch=2, pass_tokens=16)
    requests = [Request(name, tuple(range(15)), 20, max_draft_tokens=4) for name in ("a", "b", "c")]
    results = drive(engine, requests, cancel={"b": at})
    assert results["a"].ids == results["c"].ids == greedy(LAW, tuple(range(15)), 20)
    assert results["b"].ids == results["a"].ids[: len(results["b"].ids)]


def test_a_request_is_said_to_start_before_its_first_pass_and_not_after_it() -> None:
    engine, runner = scripted_engine(LAW, NgramProposer(4))
    engine.submit(Request("a", (1,), 3))
    begun = engine.begin(0.0)
    assert begun.events == (Started("a", cached_tokens=0),)
    assert begun.plan is not None and runner.plans == []
    assert [type(event) for event in engine.finish(begun.plan)] == [StepOutput]


def test_an_id_that_was_cancelled_can_be_used_again_at_once() -> None:
    engine, _ = scripted_engine(LAW, NgramProposer(4))
    engine.submit(Request("a", (1, 1, 1), 50, max_draft_tokens=4))
    with pytest.raises(DuplicateRequest, match="'a' is in use"):
        engine.submit(Request("a", (2,), 5))
    results = {"a": Result()}
    for turn in range(4):
        one_turn(engine, results, turn, turn)
    engine.cancel("a")
    assert drive(engine, [Request("a", (3,), 8, max_draft_tokens=4)])["a"].ids == greedy(LAW, (3,), 8)


def test_preemption_recomputes_and_changes_no_text() -> None:
    """A pool for a quarter of the load: sequences are pushed out in mid-decoding and come back."""
    requests = [Request(str(i), tuple((i + j) % 16 for j in range(10)), 30, max_draft_tokens=4) for i in range(12)]
    engine, _ = scripted_engine(LAW, random_drafter(LAW, 4), batch=12, blocks=30, block_tokens=4, context=60)
    results = drive(engine, requests)
    assert engine.stats().preemptions > 0
    for request in requests:
        assert results[request.request_id].ids == greedy(LAW, request.prompt, 30)


def test_when_blocks_are_short_the_draft_shrinks_first() -> None:
    """Committed tokens fit and the draft's tail does not: generation goes on with a shorter draft."""
    engine, runner = scripted_engine(LAW, right_drafter(LAW, 8), blocks=6, block_tokens=4, context=24)
    result = drive(engine, [Request("a", tuple(range(16)), 8, max_draft_tokens=8)])["a"]
    assert result.ids == greedy(LAW, tuple(range(16)), 8)
    assert engine.stats().preemptions == 0
    assert all(row.next_position + row.max_nodes <= 24 for plan in runner.plans for row in plan.rows)


def test_priority_goes_first_and_equal_priorities_by_arrival() -> None:
    engine, _ = scripted_engine(LAW, NgramProposer(4), batch=1)
    names = [("low", -1), ("first", 0), ("second", 0), ("high", 5)]
    results = drive(engine, [Request(name, (1,), 4, priority=priority) for name, priority in names])
    order = sorted(results, key=lambda name: results[name].started_turn or 0)
    assert order == ["high", "first", "second", "low"]


def test_mixed_depths_in_one_batch_do_not_touch_each_other() -> None:
    """Draft lengths 4, 0, 2, 0, 1 beside each other; greedy and sampled rows mixed."""
    sampled = SamplingParams(0.9)
    requests = [
        Request(str(i), (i, 1), 25, sampled if i % 2 else SamplingParams(), seed=i, max_draft_tokens=depth)
        for i, depth in enumerate([4, 0, 2, 0, 1])
    ]
    engine, runner = scripted_engine(LAW, right_drafter(LAW, 4))
    together = drive(engine, requests)
    for request in requests:
        alone, _ = scripted_engine(LAW, right_drafter(LAW, 4))
        assert together[request.request_id].ids == drive(alone, [request])[request.request_id].ids
    assert any(sorted(draft.counts.tolist()) == [0, 0, 1, 2, 4] for draft in runner.drafts)


def nan_after(length: int, first: int) -> Law:
    """Not a number once the text that starts with `first` is so long."""

    def law(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16 if prefix[0] == first and len(prefix) >= length else LAW(prefix)

    return law


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_nan_logits_end_their_request_alone(depth: int) -> None:
    """What came before them is delivered, at any depth of speculation; the neighbour never notices."""
    requests = [Request(name, (first,), 20, max_draft_tokens=depth) for name, first in (("good", 1), ("bad", 9))]
    engine, _ = scripted_engine(nan_after(6, 9), right_drafter(LAW, 4))
    results = drive(engine, requests)
    assert isinstance(results["bad"].error, EngineFault)
    assert results["bad"].ids == greedy(LAW, (9,), 5)
    assert results["good"].ids == greedy(LAW, (1,), 20)


def test_nan_logits_after_the_end_are_nobodys_matter() -> None:
    """The output ends at its fourth token; a draft that ran past it met numbers that are none."""
    eos = greedy(LAW, (9,), 4)[3]
    assert eos not in greedy(LAW, (9,), 3)
    engine, _ = scripted_engine(nan_after(6, 9), right_drafter(LAW, 4))
    result = drive(engine, [Request("a", (9,), 20, eos_ids=frozenset({eos}), max_draft_tokens=4)])["a"]
    assert (result.ids, result.finish) == (greedy(LAW, (9,), 4), Finish(FinishReason.EOS, eos))


def test_drafts_take_no_block_that_a_waiting_request_needs() -> None:
    """A's rejected drafts could fill the pool in every pass; the long prompt joins all the same."""
    started = []
    for depth in (0, 8):
        engine, _ = scripted_engine(LAW, wrong_drafter(LAW, 8), blocks=13, block_tokens=4, context=52)
        requests = [Request("a", (1,), 20, max_draft_tokens=depth), Request("w", tuple(i % 16 for i in range(37)), 4)]
        started.append(drive(engine, requests, join_every=2)["w"].started_turn)
    assert started[0] == started[1]


def test_drafts_take_no_block_that_a_decoding_neighbour_needs() -> None:
    """Nobody is preempted and nobody skips a pass because a neighbour drafts."""
    for depth in (0, 8):
        engine, _ = scripted_engine(LAW, wrong_drafter(LAW, 8), blocks=17, block_tokens=4, context=68)
        requests = [Request(name, tuple(range(16)), 16, max_draft_tokens=depth) for name in ("a", "b")]
        results = drive(engine, requests)
        assert engine.stats().preemptions == 0
        for result in results.values():
            assert [item.pass_index for item in result.passes] == list(range(16))


def test_deadlines_end_running_requests_softly_and_waiting_ones_with_an_error() -> None:
    engine, runner = scripted_engine(LAW, NgramProposer(4), batch=1)
    requests = [
        Request("runs", (1,), 60, deadline=10.0),
        Request("waits", (2,), 60, deadline=5.0),
        Request("after", (3,), 4),
    ]
    results = drive(engine, requests)
    assert results["runs"].finish == Finish(FinishReason.DEADLINE)
    assert 0 < len(results["runs"].ids) < 60
    assert isinstance(results["waits"].error, DeadlineExceeded)
    assert all(row.history[0] != 2 for plan in runner.plans for row in plan.rows), "the engine saw the waiting one"
    assert results["after"].ids == greedy(LAW, (3,), 4)


def test_the_proposer_sees_committed_tokens_only_and_hears_of_every_end() -> None:
    """At the start of a round a drafter's view is the committed text, never a rejected guess."""
    chain = random_drafter(LAW, 4)
    engine, _ = scripted_engine(LAW, chain)
    seen: list[tuple[int, ...]] = []
    propose = chain.propose

    def watch(view):
        seen.extend(tuple(row.tokens) for row in view.rows)
        return propose(view)

    chain.propose = watch
    drive(engine, [Request("a", (1, 2), 30, max_draft_tokens=4)])
    text = [1, 2, *greedy(LAW, (1, 2), 30)]
    assert all(list(tokens) == text[: len(tokens)] for tokens in seen)
    drive(engine, [Request("b", (1,), 2)])
    assert 0 in {sequence for view in chain.views for sequence in view.released}


@pytest.mark.parametrize("seed", range(4))
def test_a_long_random_life_leaks_nothing(seed: int) -> None:
    """Arrivals, cancels, shortages, priorities and every kind of acceptance; text equals plain decoding throughout."""
    values = random.Random(seed)
    requests = [
        Request(
            str(i),
            tuple(values.randrange(16) for _ in range(values.randint(1, 40))),
            values.randint(1, 30),
            eos_ids=frozenset({15}) if values.random() < 0.5 else frozenset(),
            max_draft_tokens=values.randint(0, 5),
            priority=values.randint(-1, 1),
        )
        for i in range(60)
    ]
    cancel = {str(values.randrange(60)): values.randrange(100) for _ in range(12)}
    block_tokens = values.choice([1, 4, 16])
    engine, _ = scripted_engine(
        LAW,
        random_drafter(LAW, 4, seed=seed),
        batch=values.randint(1, 8),
        pass_tokens=values.randint(8, 48),
        blocks=80 // block_tokens,
        block_tokens=block_tokens,
        context=72,
    )
    results = drive(engine, requests, join_every=values.randint(1, 3), cancel=cancel)
    for request in requests:
        result, text = results[request.request_id], greedy(LAW, request.prompt, request.max_tokens)
        if 15 in text and request.eos_ids:
            text = text[: text.index(15) + 1]
        assert result.ids == (text if request.request_id not in cancel else text[: len(result.ids)])


def test_a_tree_wider_than_the_budget_is_cut_and_stays_right() -> None:
    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        best = greedy(LAW, tokens, 1)[0]
        return [(best + 1 + i) % 16 for i in range(16)], [-1] * 16

    engine, runner = scripted_engine(LAW, ScriptedProposer(draw, 16), pass_tokens=12)
    assert drive(engine, [Request("a", (1,), 10, max_draft_tokens=1)])["a"].ids == greedy(LAW, (1,), 10)
    assert max(int(draft.counts.max()) for draft in runner.drafts) == 11
