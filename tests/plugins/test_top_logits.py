"""`top_logits` against its eager twin and its reader, `trtspec.executors.tensorrt_llm.loop.top_rows`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plugins import eager, launch, sampling_specs
from plugins.sampling_specs import MOST
from scripts.gpu_check.kernels.rows import ATOL, RTOL, random_logits
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose
from trtspec.executors.tensorrt_llm.loop.deciding import decide
from trtspec.executors.tensorrt_llm.loop.top_rows import TopRow, last_rows
from trtspec.types import SamplingParams

BLOCK = sampling_specs.top_logits(MOST)[0].constants["BLOCK"]


def same_rows(ours: Tensor, oracle: Tensor) -> None:
    """Values and ids exactly, the log of the sum nearly."""
    torch.testing.assert_close(ours[:, :-1], oracle[:, :-1], atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(ours[:, -1], oracle[:, -1], atol=ATOL, rtol=RTOL, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("count", "vocabulary", "width"), [(3, 7, 7), (1, 1, 1), (2, 128, 131), (2, BLOCK, BLOCK), (2, BLOCK + 1, 5000)]
)
def test_kernel_and_twin_agree(count: int, vocabulary: int, width: int, dtype: torch.dtype) -> None:
    logits = random_logits(count, width, dtype=dtype)
    logits[:, vocabulary:] = 1e4
    same_rows(launch.top_logits(logits, vocabulary), eager.top_logits(logits, vocabulary))


@pytest.mark.parametrize("most", [1, 16, 128])
def test_other_lengths(most: int) -> None:
    logits = random_logits(2, 3000, seed=1).round()
    ours = launch.top_logits(logits, 3000, most)
    assert ours.shape == (2, 2 * most + 1)
    same_rows(ours, eager.top_logits(logits, 3000, most))


def test_a_large_vocabulary() -> None:
    logits = random_logits(1, 70_000, seed=2)
    same_rows(launch.top_logits(logits, 70_000), eager.top_logits(logits, 70_000))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape_in_small_blocks(data: st.DataObject) -> None:
    """Many splits, and more of them than one block of the merge; coarse logits tie."""
    most = data.draw(st.sampled_from([1, 2, 8]), "most")
    width = data.draw(st.integers(1, 80), "width")
    vocabulary = data.draw(st.integers(1, width), "vocabulary")
    logits = random_logits(data.draw(st.integers(1, 2), "rows"), width, seed=data.draw(st.integers(0, 99), "seed"))
    if data.draw(st.booleans(), "coarse"):
        logits = logits.round()
    find, merge = sampling_specs.top_logits(most)
    find = replace(find, constants={**find.constants, "BLOCK": data.draw(st.sampled_from([8, 16]), "block")})
    merge = replace(merge, constants={**merge.constants, "BLOCK": 2})
    ours = launch.launch(merge, *launch.launch(find, logits, vocabulary=vocabulary), vocabulary=vocabulary)[0]
    same_rows(ours, eager.top_logits(logits, vocabulary, most))


def test_neither_zero_is_larger() -> None:
    logits = torch.full((1, 100), -1.0)
    logits[0, [3, 5, 7]] = torch.tensor([-0.0, 0.0, -0.0])
    assert launch.top_logits(logits, 100)[0, MOST : MOST + 3].tolist() == [3, 5, 7]


def test_rows_that_are_not_finite() -> None:
    """NaN anywhere makes a row of NaN; its reader takes for a fault what the oracle does."""
    logits = random_logits(5, 3000, seed=3)
    logits[0, 2999] = math.nan
    logits[1, 7] = math.inf
    logits[2] = -math.inf
    logits[3, 5:] = -math.inf
    found = launch.top_logits(logits, 3000)
    same_rows(found, eager.top_logits(logits, 3000))
    assert found[0].isnan().all() and not found[1:].isnan().any()
    assert found[1:3, -1].tolist() == [math.inf, -math.inf]
    read = last_rows(found, 5, 0, 3000)
    for row, logit in zip(read, logits, strict=True):
        assert row is not None
        assert decide(row, greedy(), 3000) == int(choose(logit.unsqueeze(0), greedy()))
    assert [int(token) for token in choose(logits[:3], greedy(3))] == [NO_TOKEN] * 3


def greedy(rows: int = 1) -> ChoiceRows:
    return ChoiceRows([SamplingParams()] * rows, [1] * rows, [5] * rows, [0] * rows)


@pytest.mark.parametrize("vocabulary", [5, MOST - 1, MOST])
def test_the_reader_knows_all_of_a_small_vocabulary(vocabulary: int) -> None:
    """What is there beside it overwrites nothing: the reader spreads the row to the very logits."""
    logits = random_logits(2, MOST + 10, seed=4)
    logits[:, vocabulary:] = 50.0
    for row, told in zip(logits, last_rows(launch.top_logits(logits, vocabulary), 2, 0, vocabulary), strict=True):
        assert told is not None
        assert told.spread(vocabulary, math.nan)[0].equal(row[:vocabulary])
        assert told.normaliser == pytest.approx(float(row[:vocabulary].logsumexp(0)), abs=ATOL)
        sampled = ChoiceRows([SamplingParams(temperature=0.8)], [4], [9], [0])
        assert decide(told, sampled, vocabulary) == int(choose(row[None, :vocabulary], sampled))


def test_a_row_is_what_its_reader_takes_it_for() -> None:
    logits = random_logits(1, 500, seed=5)
    told = TopRow.of(launch.top_logits(logits, 500)[0])
    best = logits[0].sort(descending=True)
    assert told.values.equal(best.values[:MOST]) and told.ids.equal(best.indices[:MOST])


def test_launches_repeat_themselves() -> None:
    logits = random_logits(2, 5000, seed=6)
    before = logits.clone()
    first, second = (launch.top_logits(logits, 5000) for _ in range(2))
    assert first.view(torch.int32).equal(second.view(torch.int32)) and logits.equal(before)
