"""Requests for n outputs: each is a sequence of its own, and the request is one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.scripted import (
    Law,
    Result,
    drive,
    greedy,
    hashed_law,
    one_turn,
    random_drafter,
    record,
    right_drafter,
    scripted_engine,
)
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import DeadlineExceeded, EngineFault
from trtspec.types import Failed, Finish, FinishReason, Request, SamplingParams, Started, StepOutput

LAW = hashed_law()
SAMPLED = SamplingParams(1.0)
PROMPT = tuple((i * 5) % 16 for i in range(18))


@pytest.mark.parametrize("prefix_sharing", [True, False])
@pytest.mark.parametrize("length", [2, 18])
def test_each_output_is_that_of_a_request_of_its_own(prefix_sharing: bool, length: int) -> None:
    """Sampled and speculated, beside a neighbour; runs differ in length from output to output. Prompts shorter than
    a block, too."""
    request = Request("a", PROMPT[:length], 25, SAMPLED, seed=6, eos_ids=frozenset({3}), max_draft_tokens=4, n=3)
    engine, _ = scripted_engine(LAW, random_drafter(LAW, 4), prefix_sharing=prefix_sharing)
    results = drive(engine, [Request("b", PROMPT, 20, max_draft_tokens=4), request])
    plain, _ = scripted_engine(LAW, NoProposer(), prefix_sharing=False)
    expected = drive(plain, [Request("a", PROMPT[:length], 25, SAMPLED, seed=6, eos_ids=frozenset({3}), n=3)])["a"]
    outputs = results["a"].outputs
    assert sorted(outputs) == [0, 1, 2]
    for index, output in outputs.items():
        assert (output.ids, output.finish) == (expected.outputs[index].ids, expected.outputs[index].finish)
    assert len({tuple(output.ids) for output in outputs.values()}) == 3, "the outputs are not independent"
    assert any(output.stats.accepted for output in outputs.values())
    assert results["b"].ids == greedy(LAW, PROMPT, 20)
    assert engine.stats().free_blocks == engine.stats().total_blocks


def test_the_prompt_is_computed_once_and_others_do_not_wait_for_it() -> None:
    """The first output's prompt takes several passes. The other outputs wait for it, a request behind them does not."""
    engine, runner = scripted_engine(LAW, NoProposer(), pass_tokens=8, block_tokens=4)
    results = drive(engine, [Request("a", PROMPT, 6, n=3), Request("behind", (1,), 6)])
    assert (results["a"].cached_tokens, results["behind"].cached_tokens) == (0, 0)
    first = {
        number: next(row for plan in runner.plans for row in plan.rows if row.sequence_id == number)
        for number in range(4)
    }
    assert [first[number].start for number in range(4)] == [0, 16, 16, 0]
    firsts = [results["a"].outputs[index].first_token_pass for index in range(3)]
    assert firsts[0] < firsts[1] == firsts[2]
    assert results["behind"].first_token_pass <= firsts[0]
    assert all(results["a"].outputs[index].ids == greedy(LAW, PROMPT, 6) for index in range(3))


def test_the_batch_counts_outputs_and_order_is_priority_then_arrival_then_choice() -> None:
    engine, runner = scripted_engine(LAW, NoProposer(), batch=2)
    requests = [Request("low", (1,), 3, n=2), Request("next", (2,), 3, n=2), Request("high", (3,), 3, n=2, priority=1)]
    results = drive(engine, requests)
    assert max(len(plan.rows) for plan in runner.plans) == 2
    first = {(name, i): output.first_token_pass for name in results for i, output in results[name].outputs.items()}
    assert first == {
        ("high", 0): 0,
        ("high", 1): 0,
        ("low", 0): 3,
        ("low", 1): 3,
        ("next", 0): 6,
        ("next", 1): 6,
    }


def test_waiting_counts_outputs_that_are_held_back() -> None:
    engine, _ = scripted_engine(LAW, NoProposer())
    engine.submit(Request("a", PROMPT, 6, n=3))
    assert (engine.stats().running, engine.stats().waiting) == (0, 3)
    begun = engine.begin(0.0)
    assert (engine.stats().running, engine.stats().waiting) == (1, 2)
    assert begun.plan is not None
    engine.finish(begun.plan)
    engine.begin(0.0)
    assert (engine.stats().running, engine.stats().waiting) == (3, 0)


@pytest.mark.parametrize("turns", [0, 1, 2, 6])
def test_cancel_ends_all_outputs_and_frees_their_blocks(turns: int) -> None:
    """Queued; with two outputs held back; just admitted; in mid-decoding. One of them may have ended before."""
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 2))
    engine.submit(Request("a", PROMPT, 40, max_draft_tokens=2, n=3))
    results = {"a": Result()}
    for turn in range(turns):
        one_turn(engine, results, turn, turn)
    events = engine.cancel("a")
    record(results, events, turns)
    assert [(event.output_index, event.finish) for event in events if isinstance(event, StepOutput)] == [
        (index, Finish(FinishReason.CANCELLED)) for index in range(3)
    ]
    assert engine.idle and engine.cancel("a") == ()
    assert engine.stats().free_blocks == engine.stats().total_blocks
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)
    engine.check()
    assert drive(engine, [Request("a", PROMPT, 5)])["a"].ids == greedy(LAW, PROMPT, 5)


def test_outputs_that_ended_are_not_ended_again() -> None:
    """Output 0 ends by itself in the first pass; the deadline ends the other ones."""

    def first_of(prefix: Sequence[int]) -> Sequence[float]:
        return [9.0 if token == 7 else 8.5 if token == 3 else -9.0 for token in range(16)]

    seed = next(s for s in range(50) if ends_at_once(first_of, s) == [True, False, False])
    engine, _ = scripted_engine(first_of, NoProposer())
    request = Request("a", (1, 2), 30, SAMPLED, seed=seed, eos_ids=frozenset({3}), n=3, deadline=2.0)
    outputs = drive(engine, [request])["a"].outputs
    assert outputs[0].finish == Finish(FinishReason.EOS, 3)
    assert {outputs[1].finish, outputs[2].finish} <= {Finish(FinishReason.DEADLINE), Finish(FinishReason.EOS, 3)}
    assert engine.idle


def ends_at_once(law: Law, seed: int) -> list[bool]:
    engine, _ = scripted_engine(law, NoProposer())
    request = Request("a", (1, 2), 1, SAMPLED, seed=seed, n=3)
    return [output.ids == [3] for _, output in sorted(drive(engine, [request])["a"].outputs.items())]


def test_a_deadline_in_the_queue_fails_the_request_once() -> None:
    engine, _ = scripted_engine(LAW, NoProposer(), batch=2)
    engine.submit(Request("a", (1,), 9))
    engine.submit(Request("b", (2,), 9, n=2, priority=-1))
    engine.submit(Request("late", (2,), 9, n=2, priority=-2, deadline=1.0))
    assert [event for event in engine.begin(0.5).events if event.request_id == "late"] == []
    events = [event for event in engine.begin(1.5).events if event.request_id == "late"]
    assert [type(event) for event in events] == [Failed]
    assert isinstance(events[0].error, DeadlineExceeded)


def test_logits_that_are_no_numbers_fail_the_request_once_and_the_neighbour_goes_on() -> None:
    """They come on one output's way; nothing of the request follows, though its other outputs ran in that pass."""
    plain, _ = scripted_engine(LAW, NoProposer())
    request = Request("a", PROMPT, 30, SAMPLED, seed=2, n=3)
    texts = [tuple(output.ids) for _, output in sorted(drive(plain, [request])["a"].outputs.items())]
    assert len({text[:4] for text in texts}) == 3
    cursed = (*PROMPT, *texts[1][:4])

    def law(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16 if tuple(prefix) == cursed else LAW(prefix)

    engine, _ = scripted_engine(law, NoProposer())
    results = drive(engine, [request, Request("b", (4,), 20)])
    assert isinstance(results["a"].error, EngineFault)
    assert [tuple(results["a"].outputs[index].ids) for index in range(3)] == [texts[0][:6], texts[1][:4], texts[2][:4]]
    assert results["b"].ids == greedy(LAW, (4,), 20)
    assert engine.idle and engine.stats().free_blocks == engine.stats().total_blocks


def test_a_request_starts_once_and_scores_its_prompt_once() -> None:
    engine, runner = scripted_engine(LAW, NoProposer())
    engine.submit(Request("a", PROMPT, 4, n=3, logprobs=1, prompt_logprobs=1))
    events = []
    while not engine.idle:
        begun = engine.begin(0.0)
        events += [*begun.events, *engine.finish(begun.plan)]
    assert [event for event in events if isinstance(event, Started)] == [Started("a", 0)]
    outputs = [event for event in events if isinstance(event, StepOutput)]
    told = [(event.output_index, len(event.prompt_logprobs)) for event in outputs if event.prompt_logprobs]
    assert told == [(0, len(PROMPT))]
    assert all(len(event.logprobs) == len(event.token_ids) for event in outputs)
    assert sum(row.scored for plan in runner.plans for row in plan.rows) == len(PROMPT) + 3 * 4 - 1


def test_outputs_of_one_request_come_back_from_preemption() -> None:
    engine, _ = scripted_engine(LAW, random_drafter(LAW, 4), blocks=20, block_tokens=2, context=40)
    results = drive(engine, [Request("a", PROMPT, 20, max_draft_tokens=4, n=4), Request("b", (1, 2), 20)])
    assert engine.stats().preemptions > 0
    assert all(results["a"].outputs[index].ids == greedy(LAW, PROMPT, 20) for index in range(4))
    assert results["b"].ids == greedy(LAW, (1, 2), 20)
