"""Speculation never changes the law of the output: pairs of tokens against the enumerated law.

Pairs, because errors among siblings and in the path show in the second token. The planted mistakes show that these
tests can fail.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.law import world, wrong
from tests.law.chi_square import fit
from trtspec.decoding.draft import Draft
from trtspec.decoding.rng import seed_words
from trtspec.types import SamplingParams

HOT = SamplingParams(temperature=1.0)
WARM = SamplingParams(temperature=0.7)
TRUNCATED = SamplingParams(temperature=0.9, top_k=6, top_p=0.9, min_p=0.02)
SAMPLINGS = pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(HOT, id="hot", marks=pytest.mark.slow),
        pytest.param(WARM, id="warm"),
        pytest.param(TRUNCATED, id="truncated"),
    ],
)


@SAMPLINGS
@pytest.mark.parametrize(
    "drafter",
    [world.certain_chain, world.coupled_chain, world.certain_tree, world.ragged_tree],
    ids=["certain chain", "coupled chain", "tree", "ragged tree"],
)
def test_choose_and_walk_tree_keep_the_law(sampling: SamplingParams, drafter: world.Drafter) -> None:
    place = world.make_world(sampling)
    result = fit(world.pair_counts(place, drafter, world.by_walk), place.pair_law())
    assert result.good, result


@SAMPLINGS
@pytest.mark.parametrize("drafter", [world.certain_chain, world.sampled_chain], ids=["certain", "sampled"])
def test_chain_rejection_keeps_the_law(sampling: SamplingParams, drafter: world.Drafter) -> None:
    place = world.make_world(sampling)
    result = fit(world.pair_counts(place, drafter, world.by_rejection), place.pair_law())
    assert result.good, result


@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        (world.sampled_chain, wrong.residual_not_normalised),
        (world.sampled_chain, wrong.draft_law_at_another_temperature),
        (world.certain_tree, wrong.siblings_without_residual),
        (world.certain_tree, wrong.bonus_from_the_wrong_row),
        (wrong.peeking_confidence_stop, world.by_rejection),
        (world.certain_tree, wrong.path_off_by_one),
    ],
    ids=[
        "residual not normalised",
        "q at the wrong temperature",
        "siblings accepted without residual",
        "bonus from the wrong row",
        "confidence stop looks at the token it removes",
        "path off by one",
    ],
)
def test_a_wrong_verifier_is_caught(drafter: world.Drafter, verifier: world.Verifier) -> None:
    place = world.make_world(WARM)
    result = fit(world.pair_counts(place, drafter, verifier), place.pair_law())
    assert not result.good, result


def test_an_unbiased_stop_is_not_caught() -> None:
    """A stop that depends on the draft law, and not on the token drawn, may shorten drafts freely."""

    def stop_before_flat_laws(
        place: world.World, contexts: torch.Tensor, key: torch.Tensor, positions: torch.Tensor
    ) -> Draft:
        draft = world.sampled_chain(place, contexts, key, positions)
        assert draft.probs is not None
        sure = draft.probs.max(dim=2).values >= 0.4
        return replace(draft, counts=sure.long().cumprod(dim=1).sum(dim=1))

    place = world.make_world(WARM)
    result = fit(world.pair_counts(place, stop_before_flat_laws, world.by_rejection), place.pair_law())
    assert result.good, result


def test_acceptance_is_the_known_share() -> None:
    """Shared noise accepts sum_i 1 / sum_j max(p_j/p_i, q_j/q_i); the rejection rule accepts sum_i min(p_i, q_i)."""
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0.35, 0.15, 0.3, 0.2])
    coupled = (1 / torch.maximum(p / p.unsqueeze(1), q / q.unsqueeze(1)).sum(dim=1)).sum().item()
    place = world.World(_everywhere(p), _everywhere(q), HOT)
    key = seed_words(list(range(world.DRAWS)))
    contexts, positions = torch.zeros(world.DRAWS, 2, dtype=torch.int64), torch.zeros(world.DRAWS, dtype=torch.int64)
    shares = []
    for drafter, verifier in ((world.coupled_chain, world.by_walk), (world.sampled_chain, world.by_rejection)):
        outcome = verifier(place, contexts, key, positions, drafter(place, contexts, key, positions))
        shares.append((outcome.accepted >= 1).double().mean().item())
    assert shares == pytest.approx([coupled, torch.minimum(p, q).sum().item()], abs=0.015)
    assert shares == pytest.approx([0.758, 0.80], abs=0.015)


def test_a_certain_proposal_is_accepted_with_the_targets_probability() -> None:
    """A drafter that always proposes token 0 under p = .4 .3 .2 .1: accepted 40 % of the time, and the law stays p."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    place = world.World(_everywhere(p), _everywhere(torch.tensor([1.0])), HOT)
    key = seed_words(list(range(world.DRAWS)))
    contexts, positions = torch.zeros(world.DRAWS, 2, dtype=torch.int64), torch.zeros(world.DRAWS, dtype=torch.int64)
    for verifier in (world.by_walk, world.by_rejection):
        outcome = verifier(place, contexts, key, positions, world.certain_chain(place, contexts, key, positions))
        assert (outcome.accepted >= 1).double().mean().item() == pytest.approx(0.4, abs=0.015)
        counts = torch.bincount(outcome.emitted[:, 0], minlength=4).numpy()
        assert fit(counts, p.double().numpy()).good


def _everywhere(law: torch.Tensor) -> torch.Tensor:
    """The same law after any context; tokens beyond it are impossible."""
    logits = torch.full((world.VOCABULARY,), -torch.inf)
    logits[: len(law)] = law.log()
    return logits.expand(world.VOCABULARY, world.VOCABULARY, world.VOCABULARY)
