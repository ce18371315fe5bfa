"""Speculation changes the schedule and nothing else: greedy ids on a scripted target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.scripted import (
    Law,
    ScriptedProposer,
    chain_law,
    drive,
    greedy,
    hashed_law,
    random_drafter,
    right_drafter,
    scripted_engine,
    wrong_drafter,
)
from trtspec.decoding.proposer import Proposer
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.decoding.proposers.none import NoProposer
from trtspec.types import FinishReason, Request, SamplingParams

LAW = hashed_law()


def periodic_law() -> Law:
    """Text that repeats with period three, so that prompt lookup finds its matches."""
    return chain_law(lambda prefix: prefix[-3] if len(prefix) >= 3 else 5 + len(prefix))


PROPOSERS = {
    "none": lambda law: NoProposer(),
    "ngram": lambda law: NgramProposer(4),
    "right": right_drafter,
    "wrong": wrong_drafter,
    "random trees": random_drafter,
}
EVERY_PROPOSER = pytest.mark.parametrize("name", PROPOSERS)


def proposer(name: str, law: Law) -> Proposer:
    return PROPOSERS[name](law)


@EVERY_PROPOSER
@pytest.mark.parametrize("law", [LAW, periodic_law()], ids=["wandering", "repetitive"])
def test_ids_finish_and_usage_are_those_of_plain_decoding(name: str, law: Law) -> None:
    request = Request("a", (1, 2, 3, 1, 2, 3), max_tokens=40, max_draft_tokens=4)
    engine, _ = scripted_engine(law, proposer(name, law))
    result = drive(engine, [request])["a"]
    assert result.ids == greedy(law, request.prompt, 40)
    assert result.finish is not None and result.finish.reason is FinishReason.LENGTH
    assert result.stats.completion_tokens == 40


@EVERY_PROPOSER
@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_short_prompts_around_the_draft_length(name: str, length: int) -> None:
    """Position i sees exactly i earlier tokens: the scripted runner asserts it for every prefix."""
    prompt = tuple(range(1, length + 1))
    engine, _ = scripted_engine(LAW, proposer(name, LAW))
    assert drive(engine, [Request("a", prompt, 20, max_draft_tokens=4)])["a"].ids == greedy(LAW, prompt, 20)


TREES = {
    "chain": ([0, 1, 2], [-1, 0, 1]),
    "star": ([0, 1, 2, 3], [-1, -1, -1, -1]),
    "three levels": ([0, 1, 2, 0, 1, 2, 0], [-1, -1, -1, 0, 1, 1, 4]),
}


@pytest.mark.parametrize("shape", TREES)
def test_the_shape_of_the_tree_does_not_matter(shape: str) -> None:
    offsets, parents = TREES[shape]

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        best = greedy(LAW, tokens, 3)
        return [(best[min(i, 2)] + offset) % 16 for i, offset in enumerate(offsets)], parents

    engine, _ = scripted_engine(LAW, ScriptedProposer(draw))
    request = Request("a", (3, 1), max_tokens=30, max_draft_tokens=3)
    assert drive(engine, [request])["a"].ids == greedy(LAW, (3, 1), 30)


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_accepted_path_through_scattered_slots_is_moved_together(block_tokens: int, batch: int) -> None:
    """The path is the second child at depth 1 and the third below it, so no accepted slot is in its place."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        first, second = greedy(LAW, tokens, 2)
        wrong = [item for item in range(16) if item not in (first, second)]
        return [wrong[0], first, wrong[1], wrong[2], second], [-1, -1, 1, 1, 1]

    engine, runner = scripted_engine(LAW, ScriptedProposer(draw), block_tokens=block_tokens, blocks=512 // block_tokens)
    requests = [Request(str(i), (i + 1, 2), max_tokens=20, max_draft_tokens=2) for i in range(batch)]
    results = drive(engine, requests)
    for request in requests:
        assert results[request.request_id].ids == greedy(LAW, request.prompt, 20)
    assert any(plan.copies for plan in runner.plans)
    assert results["0"].stats.acceptance_rate == 1.0


def test_a_hundred_mixed_prompts_with_two_drafted_tokens() -> None:
    """Matches in the last block, at position 0 and overlapping the end are among them."""
    law = chain_law(lambda prefix: (prefix[-2] + len(prefix) // 7) % 16 if len(prefix) > 1 else 3)
    prompts = [tuple((i * j) % 16 for j in range(1, 2 + i % 23)) for i in range(97)]
    prompts += [(5, 6, 7, 5, 6, 7), (9,), (4, 4, 4, 4)]
    engine, _ = scripted_engine(law, NgramProposer(2))
    results = drive(engine, [Request(str(i), prompt, 20, max_draft_tokens=2) for i, prompt in enumerate(prompts)])
    assert all(results[str(i)].ids == greedy(law, prompt, 20) for i, prompt in enumerate(prompts))
    assert sum(result.stats.accepted for result in results.values()) > 0


@EVERY_PROPOSER
def test_sixteen_different_requests_together_and_alone(name: str) -> None:
    requests = [
        Request(str(i), tuple((i + j) % 16 for j in range(1 + 3 * i)), 5 + 2 * i, max_draft_tokens=i % 5)
        for i in range(16)
    ]
    engine, _ = scripted_engine(LAW, proposer(name, LAW), batch=16, pass_tokens=40)
    together = drive(engine, requests, join_every=2)
    for request in requests:
        alone, _ = scripted_engine(LAW, proposer(name, LAW))
        assert together[request.request_id].ids == drive(alone, [request])[request.request_id].ids


@EVERY_PROPOSER
def test_lengths_and_finish_reasons_agree_between_modes(name: str) -> None:
    """The same stop rules give the same cut, whatever ran ahead of it."""
    for eos in range(16):
        request = Request("a", (7, 8, 9), 25, eos_ids=frozenset({eos}), max_draft_tokens=4)
        engine, _ = scripted_engine(LAW, proposer(name, LAW))
        plain, _ = scripted_engine(LAW, NoProposer())
        speculative, baseline = drive(engine, [request])["a"], drive(plain, [request])["a"]
        assert (speculative.ids, speculative.finish) == (baseline.ids, baseline.finish)


def test_a_drafter_equal_to_the_target_is_always_accepted() -> None:
    """A lower figure would mean wrong positions, mask or cache."""
    engine, _ = scripted_engine(LAW, right_drafter(LAW, 4))
    result = drive(engine, [Request("a", (1,), max_tokens=101, max_draft_tokens=4)])["a"]
    assert result.stats.acceptance_rate == 1.0
    assert {item.emitted for item in result.passes if not item.prefill} == {5}


@EVERY_PROPOSER
def test_seeded_sampling_is_identical_at_any_depth_and_in_any_batch(name: str) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.95)
    texts = set()
    for depth in (0, 1, 4):
        engine, _ = scripted_engine(LAW, proposer(name, LAW))
        neighbours = [Request(str(i), (i,), 12, sampling, seed=i, max_draft_tokens=i % 5) for i in range(6)]
        request = Request("a", (2, 3), 30, sampling, seed=2**63 + 5, max_draft_tokens=depth)
        texts.add(tuple(drive(engine, [*neighbours, request] if depth else [request])["a"].ids))
    assert len(texts) == 1
    engine, _ = scripted_engine(LAW, proposer(name, LAW))
    other = drive(engine, [Request("a", (2, 3), 30, sampling, seed=2**63 + 6, max_draft_tokens=4)])["a"].ids
    assert tuple(other) not in texts


@pytest.mark.parametrize("wrong_at", range(4))
def test_nothing_scored_after_a_rejected_position_is_kept(wrong_at: int) -> None:
    """Sampled, with a chain that is right up to one position: the text is that of plain sampling, and the scripted
    runner asserts that every pass is fed committed tokens only."""
    sampling = SamplingParams(temperature=0.8)
    request = Request("a", (4, 2), 200, sampling, seed=9)
    plain, _ = scripted_engine(LAW, NoProposer())
    text = [*request.prompt, *drive(plain, [request])["a"].ids]

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = text[len(tokens) : len(tokens) + min(4, limit)]
        if wrong_at < len(chain):
            chain[wrong_at] = (chain[wrong_at] + 1) % 16
        return chain, list(range(-1, len(chain) - 1))

    engine, _ = scripted_engine(LAW, ScriptedProposer(draw))
    result = drive(engine, [replace(request, max_draft_tokens=4)])["a"]
    assert [*request.prompt, *result.ids] == text
    assert {item.accepted for item in result.passes if item.drafted == 4} == {wrong_at}
