"""What a drafter guesses: how likely each guess is thought to be, and what truncation cuts off before noise comes."""

from __future__ import annotations

import math

import pytest
import torch

from trtspec.decoding.candidates import candidates, drawn
from trtspec.decoding.sampling import ChoiceRows
from trtspec.types import SamplingParams

LOGITS = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()


def rows_of(*sampling: SamplingParams) -> ChoiceRows:
    count = len(sampling)
    return ChoiceRows(sampling, list(range(count)), [3] * count, [0] * count)


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (SamplingParams(1.0, top_p=0.6), 2),
        (SamplingParams(1.0, min_p=0.6), 2),
        (SamplingParams(1.0, top_k=3), 3),
        (SamplingParams(1.0, top_k=2, top_p=0.5), 1),
        (SamplingParams(1.0, top_p=0.95, min_p=0.3), 3),
    ],
)
def test_noise_lifts_nothing_that_the_settings_cut_off(sampling: SamplingParams, left: int) -> None:
    """With top-k 2, the best of two has a probability of 4/7, which alone is a nucleus of a half."""
    found = candidates(LOGITS.expand(50, -1), rows_of(*[sampling] * 50), None, 4)
    assert (found.logprobs.isfinite().sum(dim=1) == left).all()
    assert all(set(row[:left]) == set(range(left)) for row in found.tokens.tolist())


def test_there_is_a_column_for_each_guess_and_a_row_for_each_place() -> None:
    rows = rows_of(SamplingParams(), SamplingParams(1.0))
    for count in (1, 3, 6):
        found = candidates(LOGITS.expand(2, -1), rows, None, count)
        assert found.tokens.shape == found.logprobs.shape == (2, count)
        assert (found.logprobs[:, 4:] == -math.inf).all()
    single = drawn(LOGITS.expand(2, -1), rows, None, 4)
    assert single.tokens.shape == single.logprobs.shape == (2, 1)
