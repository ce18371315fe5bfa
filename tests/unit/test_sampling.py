"""Processors against `transformers`' own, and the edges of `choose`."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trtspec.decoding.rng import gumbel, seed_words
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose, process
from trtspec.types import SamplingParams

GREEDY = SamplingParams()


def rows(*sampling: SamplingParams, seed: int = 5, position: int = 3) -> ChoiceRows:
    count = len(sampling)
    return ChoiceRows(sampling, [seed] * count, [position] * count, [0] * count)


@given(
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
    seed=st.integers(0, 1000),
)
def test_processors_keep_what_transformers_keeps(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(seed)) * 3
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    scores = process(logits, [SamplingParams(temperature, top_k, top_p, min_p)])
    assert torch.isfinite(scores).tolist() == torch.isfinite(expected).tolist()
    kept = torch.isfinite(scores)
    assert torch.allclose(scores[kept], expected[kept])


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5])
def test_temperatures_up_to_the_epsilon_are_greedy(temperature: float) -> None:
    logits = torch.tensor([[1.0, 1.0001, 0.5]])
    assert choose(logits, rows(SamplingParams(temperature))).tolist() == [1]


def test_ties_go_to_the_lowest_id() -> None:
    assert choose(torch.tensor([[0.0, 2.0, 2.0, 1.0]]), rows(GREEDY)).tolist() == [1]


@pytest.mark.parametrize("forced", [SamplingParams(1.0, top_k=1), SamplingParams(1.0, top_p=1e-6)])
def test_truncation_to_one_token_is_greedy(forced: SamplingParams) -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
    assert choose(logits, rows(*[forced] * 20)).tolist() == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize(
    "off", [SamplingParams(0.8, top_k=50), SamplingParams(0.8, top_p=1.0), SamplingParams(0.8, top_k=999)]
)
def test_truncation_that_keeps_all_changes_nothing(off: SamplingParams) -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
    assert choose(logits, rows(*[off] * 20)).tolist() == choose(logits, rows(*[SamplingParams(0.8)] * 20)).tolist()


def test_rows_of_a_batch_choose_as_if_alone() -> None:
    """Greedy, top-k and top-p rows together: the greedy row is the arg-max, and all equal their solo choice."""
    kinds = [GREEDY, SamplingParams(0.7, top_k=5), SamplingParams(1.0, top_p=0.9), SamplingParams(1.0, min_p=0.2)]
    for seed in range(20):
        logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(seed))
        logits[0, 5] = 9.0
        together = choose(logits, rows(*kinds, seed=seed)).tolist()
        alone = [choose(logits[i : i + 1], rows(kind, seed=seed)).item() for i, kind in enumerate(kinds)]
        assert together == alone
        assert together[0] == 5


def test_leaving_out_hopeless_tokens_changes_no_choice() -> None:
    """The choice computes noise only where it can decide; compare with noise for all tokens."""
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(2)) * 12
    kinds = [SamplingParams(1.0)] * 64
    places = torch.arange(300).expand(64, 300)
    fixed = torch.full((64, 300), 3)
    noise = gumbel(seed_words([5] * 64).unsqueeze(2), fixed, torch.zeros_like(fixed), places)
    everything = (logits.double() + noise).argmax(dim=1)
    assert choose(logits, rows(*kinds)).tolist() == everything.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "kind",
    [
        GREEDY,
        SamplingParams(1.0),
        SamplingParams(1.0, top_k=3),
        SamplingParams(1.0, top_p=0.9),
        SamplingParams(1.0, min_p=0.1),
    ],
)
def test_a_row_without_finite_logits_has_no_token_and_spoils_no_other(bad: float, kind: SamplingParams) -> None:
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(4))
    expected = choose(logits, rows(kind, kind, kind)).tolist()
    logits[1, 7] = bad
    chosen = choose(logits, rows(kind, kind, kind)).tolist()
    assert chosen[1] == NO_TOKEN
    assert [chosen[0], chosen[2]] == [expected[0], expected[2]]


@pytest.mark.parametrize("kind", [GREEDY, SamplingParams(1.0), SamplingParams(1.0, top_k=3, top_p=0.9, min_p=0.1)])
def test_a_row_with_nothing_left_has_no_token(kind: SamplingParams) -> None:
    assert choose(torch.full((1, 10), -math.inf), rows(kind)).tolist() == [NO_TOKEN]


def test_masked_tokens_are_never_chosen() -> None:
    logits = torch.full((500, 6), -math.inf)
    logits[:, 2:4] = 0.0
    sampling = [SamplingParams(1.0)] * 500
    chosen = choose(logits, ChoiceRows(sampling, list(range(500)), [0] * 500, [0] * 500))
    assert set(chosen.tolist()) == {2, 3}


def test_the_choice_follows_temperature() -> None:
    """Logits 2, 1.5, 1, .5 at T = 0.5: .6439 .2369 .0871 .0321, and not the law at T = 1."""
    from tests.law.chi_square import fit

    logits = torch.tensor([2.0, 1.5, 1.0, 0.5]).expand(20_000, 4)
    sampling = [SamplingParams(0.5)] * 20_000
    chosen = choose(logits, ChoiceRows(sampling, list(range(20_000)), [0] * 20_000, [0] * 20_000))
    counts = torch.bincount(chosen, minlength=4).numpy()
    assert fit(counts, torch.tensor([0.6439, 0.2369, 0.0871, 0.0321], dtype=torch.float64).numpy()).good
    assert not fit(counts, torch.tensor([0.4551, 0.2760, 0.1674, 0.1015], dtype=torch.float64).numpy()).good
