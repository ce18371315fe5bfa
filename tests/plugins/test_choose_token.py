"""`choose_token` against its eager twin and the oracle: ids equal, whatever the shape, type, place or neighbours.

What can go wrong hides in different places: the tails of blocks and splits, rows that have no law, and two tokens so
close that only float64 tells them apart.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins import eager, launch, sampling_specs
from scripts.gpu_check.kernels.rows import ATOL, RTOL, Rows, random_logits, rows
from tests.law.chi_square import fit
from trtspec.decoding.rng import Lane, gumbel, seed_words, uniforms
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose, process
from trtspec.types import SamplingParams

BLOCK = sampling_specs.CHOOSE_TOKEN_PARTS.constants["BLOCK"]
SPLIT = sampling_specs.CHOOSE_TOKEN_PARTS.constants["SPLIT"]
TYPES = [torch.float32, torch.float16, torch.bfloat16]


def same_choice(ours: launch.ChosenTokens, oracle: launch.ChosenTokens) -> None:
    assert ours.ids.tolist() == oracle.ids.tolist()
    near: dict[str, Any] = {"atol": ATOL, "rtol": RTOL, "equal_nan": True}
    torch.testing.assert_close(ours.logprobs, oracle.logprobs, **near)
    torch.testing.assert_close(ours.wanted_logprobs, oracle.wanted_logprobs, **near)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("count", "vocabulary", "width"),
    [(5, 7, 7), (1, 1, 1), (4, 128, 131), (2, SPLIT, SPLIT), (2, SPLIT + 1, SPLIT + 9), (2, 9001, 9 * 1024)],
)
def test_kernel_and_twin_agree(count: int, vocabulary: int, width: int, dtype: torch.dtype) -> None:
    """In bfloat16 and float16 many logits are equal, so that ties are met, too."""
    logits = random_logits(count, width, dtype=dtype)
    logits[:, vocabulary:] = 1e4
    taken = rows(logits, vocabulary=vocabulary)
    same_choice(launch.choose_token(*taken, vocabulary), eager.choose_token(*taken, vocabulary))


def test_a_large_vocabulary() -> None:
    taken = rows(random_logits(2, 32_000), noisy=[1, 1])
    same_choice(launch.choose_token(*taken, 32_000), eager.choose_token(*taken, 32_000))


def in_small_blocks(taken: Rows, vocabulary: int, block: int, blocks: int) -> launch.ChosenTokens:
    """In splits of so many blocks, of which the merge takes two at a time."""
    find = replace(sampling_specs.CHOOSE_TOKEN_PARTS, constants={"BLOCK": block, "SPLIT": block * blocks})
    merge = replace(sampling_specs.CHOOSE_TOKEN_MERGE, constants={"BLOCK": 2})
    return launch.ChosenTokens(*launch.launch(merge, *launch.launch(find, *taken, vocabulary=vocabulary, lane=0)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape_in_small_blocks(data: st.DataObject) -> None:
    """Many splits of few tokens, and more of them than one block of the merge."""
    block = data.draw(st.sampled_from([4, 8, 16]), "block")
    width = data.draw(st.integers(1, 40), "width")
    vocabulary = data.draw(st.integers(1, width), "vocabulary")
    blocks = data.draw(st.sampled_from([1, 2, 4]), "blocks")
    logits = random_logits(data.draw(st.integers(1, 3), "rows"), width, seed=data.draw(st.integers(0, 99), "seed"))
    if data.draw(st.booleans(), "coarse"):
        logits = logits.round()
    taken = rows(logits, vocabulary=vocabulary)
    same_choice(in_small_blocks(taken, vocabulary, block, blocks), eager.choose_token(*taken, vocabulary))


@pytest.mark.parametrize("lane", [Lane.TARGET, Lane.DRAFT])
def test_processed_logits_give_the_oracles_choice(lane: Lane) -> None:
    """`choose` over raw logits, with temperature and truncation, is the kernel over what `process` makes of them."""
    kinds = [SamplingParams(temperature=0.7, top_k=40), SamplingParams(temperature=1.3, top_p=0.9)]
    seeds, positions, choices = [2**64 - 3, 2**63], [17, 2**31 - 1], [0, 5]
    raw = random_logits(2, 500, seed=3)
    oracle = choose(raw, ChoiceRows(kinds, seeds, positions, choices, lane=lane))
    signed = [seed - 2**64 for seed in seeds]
    taken = rows(process(raw, kinds), seeds=signed, positions=positions, choices=choices, noisy=[1, 1])
    assert launch.choose_token(*taken, 500, lane).ids.tolist() == oracle.tolist()
    assert launch.choose_token(*taken, 500, Lane(1 - lane)).ids.tolist() != oracle.tolist()


def test_rows_without_a_law_have_no_token_and_leave_their_neighbours_alone() -> None:
    logits = random_logits(10, 200, seed=4)
    taken = rows(logits.clone(), noisy=[row % 2 for row in range(10)], wanted=[199] * 10)
    alone = launch.choose_token(*taken, 200)
    for row, (token, value) in enumerate([(0, math.nan), (199, math.nan), (5, math.inf), (5, math.inf)]):
        taken.logits[row, token] = value
    taken.logits[4:6] = -math.inf
    taken.logits[6:8, 5] = -math.inf
    chosen = launch.choose_token(*taken, 200)
    same_choice(chosen, eager.choose_token(*taken, 200))
    assert chosen.ids[:6].tolist() == [NO_TOKEN] * 6
    assert chosen.logprobs[:6].isnan().all() and chosen.wanted_logprobs[:6].isnan().all()
    assert chosen.ids[8:].tolist() == alone.ids[8:].tolist() and (chosen.ids[6:] >= 0).all()


def test_a_masked_token_has_no_probability_and_none_wanted_is_not_a_number() -> None:
    logits = torch.zeros(4, 6)
    logits[:, 4] = -math.inf
    taken = rows(logits, vocabulary=5, wanted=[4, 3, -1, 5])
    chosen = launch.choose_token(*taken, 5)
    same_choice(chosen, eager.choose_token(*taken, 5))
    told = chosen.wanted_logprobs
    assert told[:1].tolist() == [-math.inf]
    assert told[1].item() == pytest.approx(-math.log(4), abs=ATOL)
    assert told[2:].isnan().all()


@pytest.mark.parametrize("first", [3, 1500, SPLIT + 700], ids=["within a block", "across blocks", "across splits"])
def test_equal_logits_without_noise_go_to_the_lowest_id(first: int) -> None:
    logits = random_logits(2, 2 * SPLIT, seed=5)
    logits[:, [first, first + 40, 2 * SPLIT - 1]] = 30.0
    taken = rows(logits, noisy=[0, 0])
    assert launch.choose_token(*taken, 2 * SPLIT).ids.tolist() == [first, first]


@pytest.mark.parametrize("blocks", [1, 2])
def test_equals_of_many_splits_go_to_the_lowest_id(blocks: int) -> None:
    logits = torch.zeros(2, 40)
    logits[1, :3] = -1.0
    assert in_small_blocks(rows(logits, noisy=[0, 0]), 40, 4, blocks).ids.tolist() == [0, 3]


def test_neither_zero_is_larger() -> None:
    logits = torch.full((2, 2 * SPLIT), -1.0)
    logits[0, [2, SPLIT + 2]] = torch.tensor([-0.0, 0.0])
    logits[1, [2, SPLIT + 2]] = torch.tensor([0.0, -0.0])
    assert launch.choose_token(*rows(logits, noisy=[0, 0]), 2 * SPLIT).ids.tolist() == [2, 2]


SEED, POSITION, CHOICE = 77, 12, 1


def noise(vocabulary: int) -> torch.Tensor:
    """The oracle's, of one row, [V] float64."""
    here = (torch.full((vocabulary,), value) for value in (POSITION, CHOICE))
    return gumbel(seed_words([SEED]).expand(2, vocabulary), *here, torch.arange(vocabulary))


def one_row(logits: torch.Tensor) -> int:
    taken = rows(logits.unsqueeze(0), seeds=[SEED], positions=[POSITION], choices=[CHOICE], noisy=[1])
    found = launch.choose_token(*taken, len(logits)).ids
    assert found.tolist() == eager.choose_token(*taken, len(logits)).ids.tolist()
    return int(found)


@pytest.mark.parametrize("gap", [1e-13, -1e-13])
@pytest.mark.parametrize(("low", "high"), [(0, 1000), (0, SPLIT), (SPLIT, 2 * SPLIT)])
def test_near_ties_are_told_apart_as_in_float64(low: int, high: int, gap: float) -> None:
    """Of two tokens of nearly equal noise one logit makes up for the difference, as far as float32 can, and the other,
    so small that its own rounding is none, for what is left but for a gap. float32 would see equals."""
    here = noise(2 * SPLIT)
    order = here[low:high].argsort() + low
    closest = order[(here[order[1:]] - here[order[:-1]])[: high // 4].argmin() :][:2]
    one, other = sorted(closest.tolist())
    logits = torch.full((2 * SPLIT,), -math.inf)
    logits[other] = (here[one] - here[other]).float()
    logits[one] = (logits[other].double() + here[other] - here[one] + gap).float()
    difference = float(logits[one].double() + here[one] - logits[other].double() - here[other])
    assert abs(difference - gap) < 1e-14, "the rows are no near-tie"
    assert one_row(logits) == (one if gap > 0 else other)


def test_the_same_noise_on_the_same_logit_goes_to_the_lowest_id() -> None:
    """Of 32,000 tokens some share their 24 bits: here two of one split but not of one block, and two of two splits."""
    count = 32_000
    here = (torch.full((count,), value) for value in (POSITION, CHOICE))
    drawn = uniforms(seed_words([SEED]).expand(2, count), *here, torch.arange(count), Lane.TARGET)
    order = drawn.argsort(stable=True)
    pairs = torch.stack([order[:-1], order[1:]])[:, drawn[order].diff() == 0]
    same_split, same_block = ((pairs // size).diff(dim=0)[0] == 0 for size in (SPLIT, BLOCK))
    for pair in (pairs[:, same_split & ~same_block][:, 0], pairs[:, ~same_split][:, 0]):
        logits = torch.full((count,), -math.inf)
        logits[pair] = 2.5
        assert one_row(logits) == int(pair[0])


def test_the_largest_noise_is_finite_and_wins() -> None:
    """A token 15 below all others wins where its noise is larger by more than that: no block was left out too soon."""
    here = noise(SPLIT)
    winner = int(here.argmax())
    least = float(here.sort().values[-2] - here[winner])
    logits = torch.zeros(SPLIT)
    logits[winner] = least + 1e-3
    assert one_row(logits) == winner
    logits[winner] = least - 1e-3
    assert one_row(logits) == int(here.argsort()[-2])


def test_launches_repeat_themselves() -> None:
    taken = rows(random_logits(3, 5000, seed=6))
    before = [item.clone() for item in taken]
    first, second = (launch.choose_token(*taken, 5000) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.view(torch.int32).equal(other.view(torch.int32))
    assert all(one.equal(other) for one, other in zip(before, taken, strict=True)), "an input was written"


@pytest.mark.slow
def test_choices_follow_the_law() -> None:
    law = torch.tensor([0.4, 0.3, 0.2, 0.05, 0.03, 0.02])
    count = 1500
    logits = law.log().expand(count, 6)
    places = {"positions": list(range(count)), "choices": [0] * count, "noisy": [1] * count}
    chosen = launch.choose_token(*rows(logits, seeds=[9] * count, **places), 6).ids
    result = fit(np.bincount(chosen.numpy(), minlength=6), law.double().numpy())
    assert result.good, result
