"""What rejection sampling emits has the target's law, place by place, whatever was drafted.

The twin is tried with many draws; the kernels, which are interpreted here, with fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from plugins.eager_verification import ChainOutcome, law
from scripts.gpu_check.kernels.chains import Chains, drawn_chains
from tests.law.chi_square import fit

TARGET = torch.tensor(
    [
        [1.0, 0.4, 0.0, -0.3, -1.0, -torch.inf, 0.7],
        [0.0, 1.2, 0.3, 0.3, -torch.inf, -0.6, -0.2],
        [0.5, -0.5, 0.9, 0.1, 0.0, 0.2, -torch.inf],
    ]
)
"""Scores after the root and after each of two nodes."""


@dataclass(frozen=True)
class Drafter:
    scores: Tensor  # [2, 7]
    certain: bool
    fates: frozenset[int]
    """How many nodes may stay."""


OTHER = torch.tensor([[0.0, 1.0, 0.6, -1.0, 0.5, 0.2, -torch.inf], [0.8, -0.7, 0.0, 1.0, 0.3, 0.4, 0.1]])
ALL = frozenset({0, 1, 2})
DRAFTERS = {
    "sampled": Drafter(OTHER, False, ALL),
    "certain": Drafter(TARGET[:2], True, ALL),
    "the target itself": Drafter(TARGET[:2], False, frozenset({2})),
    "disjoint": Drafter(torch.where(TARGET.isfinite(), -torch.inf, 0.0)[:2], False, frozenset({0})),
}


def check(drafter: Drafter, rows: int, rule: Callable[[Chains], ChainOutcome]) -> None:
    """The law of each place's token, in the rows that reach the place."""
    chains = drawn_chains(TARGET, drafter.scores, rows, drafter.certain)
    outcome = rule(chains)
    assert set(outcome.accepted.tolist()) == drafter.fates
    for place, wanted in enumerate(law(TARGET)[: max(drafter.fates) + 1]):
        there = outcome.accepted >= place
        emitted = outcome.token
        if place < 2:
            emitted = torch.where(outcome.accepted > place, chains.tokens[:, place], outcome.token)
        counts = np.bincount(emitted[there].numpy(), minlength=7)
        result = fit(counts, wanted.numpy())
        assert result.good, (place, result)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_twin_keeps_the_law(name: str) -> None:
    check(DRAFTERS[name], 6_000, Chains.eager)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_kernels_keep_the_law(name: str) -> None:
    check(DRAFTERS[name], 1_000, Chains.launched)


@pytest.mark.slow
def test_the_kernels_keep_a_law_of_which_the_draft_knows_half() -> None:
    """There few draws tell: drawing from p itself after a rejection would give a statistic of 45, and 31 is allowed."""
    wanted = torch.tensor([0.3, 0.2, 0.3, 0.2])
    scores = torch.stack([wanted, wanted.flip(0)]).log()
    chains = drawn_chains(scores, torch.tensor([[0.7, 0.3, 0.0, 0.0]]).log(), rows=180)
    outcome = chains.launched()
    first = torch.where(outcome.accepted > 0, chains.tokens[:, 0], outcome.token)
    result = fit(np.bincount(first.numpy(), minlength=4), wanted.double().numpy())
    assert result.good, result
