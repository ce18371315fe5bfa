"""Processors against `transformers`' own, and the edges of `choose`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.plans import decode_row
from trtspec.decoding.edits import Editor
from trtspec.decoding.rng import gumbel, seed_words
from trtspec.decoding.sampling import NO_TOKEN, NOTHING_ALLOWED, ChoiceRows, choose, fault, process, token_law
from trtspec.errors import EngineFault, InvalidField
from trtspec.types import Request, SamplingParams

GREEDY = SamplingParams()


def rows(*sampling: SamplingParams, seed: int = 5, position: int = 3) -> ChoiceRows:
    count = len(sampling)
    return ChoiceRows(sampling, [seed] * count, [position] * count, [0] * count)


@given(
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    min_p=st.just(0.0) | st.floats(1e-6, 0.9),  # transformers compares probabilities, which underflow in float32
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


@pytest.mark.parametrize(("width", "spread"), [(300, 12.0), (300, 1.0), (3000, 6.0), (3000, 2.0)])
def test_leaving_out_hopeless_tokens_changes_no_choice(width: int, spread: float) -> None:
    """The choice computes noise only where it can decide; compare with noise for all tokens."""
    logits = torch.randn(64, width, generator=torch.Generator().manual_seed(2)) * spread
    seeds = list(range(64))
    places = torch.arange(width).expand(64, width)
    fixed = torch.full((64, width), 3)
    noise = gumbel(seed_words(seeds).unsqueeze(2), fixed, torch.zeros_like(fixed), places)
    everything = (logits.double() + noise).argmax(dim=1)
    chosen = choose(logits, ChoiceRows([SamplingParams(1.0)] * 64, seeds, [3] * 64, [0] * 64))
    assert chosen.tolist() == everything.tolist()


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


KINDS = pytest.mark.parametrize("kind", [SamplingParams(), SamplingParams(1.0), SamplingParams(0.8, top_p=0.9)])


def edited(kind: SamplingParams, logits: torch.Tensor, *edited_rows: int, **fields: Any) -> torch.Tensor:
    """Choices where some of the rows, each a sequence by itself, have edits."""
    plain, other = Request("a", (1,), 9, kind), Request("a", (1,), 9, replace(kind, **fields))
    plan = [decode_row(other if i in edited_rows else plain, sequence_id=i) for i in range(len(logits))]
    edits = [Editor().edits(row, (), logits) for row in plan]
    return choose(logits, replace(rows(*(row.request.sampling for row in plan)), edits=edits))


@KINDS
def test_edits_reach_their_rows_alone_and_leave_the_logits_as_they_were(kind: SamplingParams) -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(4))
    before, plain = logits.clone(), choose(logits, rows(*[kind] * 4)).tolist()
    banned = edited(kind, logits, 1, 3, bad_words=tuple((token,) for token in {plain[1], plain[3]})).tolist()
    assert [banned[0], banned[2]] == [plain[0], plain[2]]
    assert not {banned[1], banned[3]} & {plain[1], plain[3]}
    assert torch.equal(logits, before)


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_edits_do_not_hide_what_is_no_number(bad: float, kind: SamplingParams) -> None:
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(4))
    expected = edited(kind, logits, 0, 1, bad_words=((7,),)).tolist()
    logits[1, 7] = bad
    assert edited(kind, logits, 0, 1, bad_words=((7,),)).tolist() == [expected[0], NO_TOKEN, expected[2]]


@KINDS
def test_edits_that_forbid_everything_are_told_from_logits_that_are_no_numbers(kind: SamplingParams) -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(4))
    expected = choose(logits, rows(kind, kind, kind)).tolist()
    chosen = edited(kind, logits, 1, bad_words=((0,), (1,), (2,), (3,))).tolist()
    assert chosen == [expected[0], NOTHING_ALLOWED, expected[2]]
    assert isinstance(fault(NOTHING_ALLOWED), InvalidField) and isinstance(fault(NO_TOKEN), EngineFault)


@pytest.mark.parametrize("flatness", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("top_p", [1e-3, 0.5, 0.95, 0.9999999])
@pytest.mark.parametrize("top_k", [0, 700])
def test_the_nucleus_is_that_of_a_full_sort(flatness: float, top_p: float, top_k: int) -> None:
    """From laws where a few tokens matter to laws where nearly all do; rows beside each other do not touch."""
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(2)) * flatness
    kinds = [SamplingParams(1.0, top_k, top_p), SamplingParams(1.0), SamplingParams(0.7, top_k=5)] * 2
    kept = torch.isfinite(process(logits, kinds))
    for row in (0, 3):
        ordered = logits[row].double().sort(descending=True)
        law = ordered.values[: top_k or 3000].softmax(dim=0)
        size = int((law.cumsum(dim=0) - law < top_p).sum())
        assert kept[row].nonzero().flatten().tolist() == ordered.indices[:size].sort().values.tolist()
        assert torch.equal(torch.isfinite(process(logits[row : row + 1], kinds[row : row + 1]))[0], kept[row])
    assert kept[1].all() and kept[2].sum() == 5


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_fault_that_edits_hide_leaves_no_law(bad: float) -> None:
    sampling = SamplingParams(0.8, bad_words=((2, 1),))
    logits = torch.tensor([[0.5, bad, 1.0], [0.5, 2.0, 1.0]])
    edits = [Editor().edits(decode_row(Request("a", (2,), 9, sampling)), (), logits)] * 2
    law = token_law(logits, replace(rows(sampling, sampling), edits=edits))
    assert not law[0].any()
    assert law[1].tolist() == pytest.approx(torch.tensor([0.5 / 0.8, -math.inf, 1.0 / 0.8]).softmax(dim=0).tolist())
