"""The rules that engines accept by, in whole passes: rejection keeps the law, typical acceptance must not pass for it.

Runs of three tokens, because a mistake about what follows a rejection, or about the token after the last node, shows
where the next pass begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import xgrammar
from numpy.typing import NDArray

from tests.law import test_penalties as penalties
from tests.law import world
from tests.law.chi_square import fit
from tests.law.passes import PROMPT, contexts, drawn_chain, generate, likeliest_tree, one_pass, run_law
from tests.plans import chunk_row, decode_row
from trtspec.decoding.acceptance import Acceptance, exact, law, rejection, rule, typical
from trtspec.decoding.candidates import candidates
from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.sampling import NO_TOKEN, NOTHING_ALLOWED, ChoiceRows, choose
from trtspec.executors.guides.grammars import Grammars
from trtspec.guides import Guide, GuideKind
from trtspec.speculative import REJECTION, TYPICAL, SpeculativeConfig
from trtspec.types import Method, OutputLaw, Request, SamplingParams

HOT = SamplingParams(temperature=1.0)
WARM = SamplingParams(temperature=0.7)
TRUNCATED = SamplingParams(temperature=0.9, top_k=6, top_p=0.9, min_p=0.02)
PENALISED = penalties.SAMPLING
P = torch.tensor([0.4, 0.3, 0.2, 0.1])
Q = torch.tensor([0.35, 0.15, 0.3, 0.2])
MEDUSA: Acceptance = partial(typical, threshold=0.09, alpha=0.3)
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("depth", "sampling"),
    [
        pytest.param(1, WARM, id="1 warm", marks=SLOW),
        pytest.param(3, TRUNCATED, id="3 truncated"),
        pytest.param(1, HOT, id="1 hot", marks=SLOW),
        pytest.param(1, TRUNCATED, id="1 truncated", marks=SLOW),
        pytest.param(2, HOT, id="2 hot", marks=SLOW),
        pytest.param(2, WARM, id="2 warm", marks=SLOW),
        pytest.param(2, TRUNCATED, id="2 truncated", marks=SLOW),
        pytest.param(3, HOT, id="3 hot", marks=SLOW),
        pytest.param(3, WARM, id="3 warm", marks=SLOW),
    ],
)
def test_rejection_keeps_the_law(depth: int, sampling: SamplingParams) -> None:
    place = world.make_world(sampling)
    generated = generate(place, rejection, drawn_chain(depth), draws=world.DRAWS, length=3)
    assert set(generated.first.accepted.tolist()) == set(range(depth + 1)), "some fate of a draft is not tested"
    result = fit(generated.counts(), run_law(place, 3))
    assert result.good, result


@pytest.mark.parametrize("draws", [600, pytest.param(8_000, marks=SLOW)])
def test_rejection_keeps_the_law_with_penalties_on_both_sides(draws: int) -> None:
    place = replace(world.make_world(WARM), sampling=PENALISED)
    generated = generate(place, rejection, drawn_chain(2), draws=draws, length=2)
    firsts = penalised_law(place, ())
    pairs = firsts[:, np.newaxis] * np.stack([penalised_law(place, (token,)) for token in range(world.VOCABULARY)])
    result = fit(generated.counts(), pairs.ravel())
    assert result.good, result


@SLOW
@pytest.mark.parametrize("accepting", [exact, rejection], ids=["exact", "rejection"])
def test_the_law_under_a_guide_is_the_targets_among_what_may_follow(accepting: Acceptance) -> None:
    """What may come second depends on the first; the drafter draws under the same guide."""
    place, draws = world.make_world(WARM), 8_000
    generated = generate(place, accepting, drawn_chain(2), draws=draws, length=2, guide=GUIDE)
    assert set(generated.first.accepted.tolist()) == {0, 1, 2}, "some fate of a draft is not tested"
    pairs = np.zeros((world.VOCABULARY, world.VOCABULARY))
    firsts = among(place.p[0, 0].numpy(), list(AFTER))
    for first, seconds in AFTER.items():
        pairs[first] = firsts[first] * among(place.p[0, first].numpy(), seconds)
    result = fit(generated.counts(), pairs.ravel())
    assert result.good, result
    free = generate(place, accepting, drawn_chain(2), draws=draws, length=2)
    assert not fit(free.counts(), pairs.ravel()).good


AFTER = {0: [1, 2], 1: [0, 3, 4, 5], 4: [6], 5: [0, 1, 2, 3, 4, 5, 6]}
GUIDE = Grammars(
    xgrammar.TokenizerInfo([b"0", b"1", b"2", b"3", b"4", b"5", b"6", b""], vocab_size=8, stop_token_ids=[7])
).compile(Guide(GuideKind.REGEX, "(0[12]|1[0345]|46|5[0-6]).*"))


def among(law: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
    """A law with nothing but some tokens."""
    kept = np.zeros_like(law)
    kept[tokens] = law[tokens]
    return np.asarray(kept / kept.sum())


def penalised_law(place: world.World, output: Sequence[int]) -> NDArray[np.float64]:
    """The law after the prompt and an output, by the formulas of the penalties."""
    history = [*PROMPT, *output]
    return penalties.edited_law(place.target[history[-2], history[-1]].tolist(), PROMPT, output, PENALISED)


def test_a_drafter_that_draws_with_the_targets_noise_breaks_the_rule() -> None:
    """The last draw would know what was drafted: why lanes are apart."""

    def wrongly_drawn(place: world.World, rows: Sequence[PlanRow]) -> Draft:
        logits = place.drafter[contexts(rows)[:, 0], contexts(rows)[:, 1]]
        return replace(drawn_chain(1)(place, rows), tokens=choose(logits, choices_of(rows)).unsqueeze(1))

    place = world.World(everywhere(P), everywhere(P.flip(0)), HOT)
    for drafter, good in ((drawn_chain(1), True), (wrongly_drawn, False)):
        generated = generate(place, rejection, drafter, draws=8_000, length=1)
        assert fit(generated.counts(), run_law(place, 1)).good is good


def test_typical_acceptance_is_seen_to_change_the_law() -> None:
    place = world.make_world(WARM)
    for accepting, good in ((exact, True), (MEDUSA, False)):
        generated = generate(place, accepting, likeliest_tree, draws=4_000, length=2)
        assert fit(generated.counts(), run_law(place, 2)).good is good
    assert law(SpeculativeConfig(Method.MEDUSA, acceptance=TYPICAL)) is OutputLaw.TYPICAL
    assert law(SpeculativeConfig(Method.DRAFT_MODEL, acceptance=REJECTION)) is OutputLaw.EXACT
    assert law(SpeculativeConfig(Method.MEDUSA)) is OutputLaw.EXACT


def test_the_rule_of_a_configuration_has_its_thresholds() -> None:
    """With everything typical the best child is always taken; with nothing, none."""
    place = world.make_world(WARM)
    rows = some_rows(place, 200)
    draft, drawn = likeliest_tree(place, rows), drawn_chain(2)(place, rows)
    for limit, accepted in ((0.0, {2}), (1.0, {0})):
        config = SpeculativeConfig(Method.MEDUSA, acceptance=TYPICAL, typical_threshold=limit, typical_alpha=limit)
        outcome = one_pass(place, rule(config), rows, draft)
        assert set(outcome.accepted.tolist()) == accepted
    for config, accepting in (
        (SpeculativeConfig(Method.EAGLE), exact),
        (SpeculativeConfig(Method.DRAFT_MODEL, acceptance=REJECTION), rejection),
    ):
        asked, same = one_pass(place, rule(config), rows, drawn), one_pass(place, accepting, rows, drawn)
        assert all(torch.equal(ours, expected) for ours, expected in zip(asked, same, strict=True))


def test_acceptance_is_the_known_share() -> None:
    """Rejection accepts sum_i min(p_i, q_i); a drafter that guesses with the target's noise accepts 0.758."""
    place = world.World(everywhere(P), everywhere(Q), HOT)
    rows = some_rows(place, 10_000)
    rejected = one_pass(place, rejection, rows, drawn_chain(1)(place, rows))
    guesses = candidates(everywhere(Q)[0, 0].expand(len(rows), -1), choices_of(rows), None, 1).tokens
    coupled = one_pass(place, exact, rows, Draft(guesses, torch.full_like(guesses, -1), torch.ones(len(rows)).long()))
    shares = [outcome.accepted.double().mean().item() for outcome in (rejected, coupled)]
    assert shares == pytest.approx([0.80, 0.758], abs=0.015)
    for outcome in (rejected, coupled):
        counts = torch.bincount(outcome.emitted[:, 0], minlength=4).numpy()
        assert fit(counts, P.double().numpy()).good


@pytest.mark.parametrize("accepting", [exact, rejection], ids=["exact", "rejection"])
def test_the_temperature_of_the_request_rules_drafted_places_and_the_bonus(accepting: Acceptance) -> None:
    """Logits 2, 1.5, 1, 0.5 at temperature 0.5, whatever the drafter thinks."""
    cold, hot = torch.tensor([0.6439, 0.2369, 0.0871, 0.0321]), torch.tensor([0.4551, 0.2760, 0.1674, 0.1015])
    place = world.World(everywhere(hot), everywhere(Q), SamplingParams(0.5))
    rows = some_rows(place, 6_000)
    outcome = one_pass(place, accepting, rows, drawn_chain(1)(place, rows))
    for tokens in (outcome.emitted[:, 0], outcome.emitted[outcome.accepted == 1, 1]):
        counts = torch.bincount(tokens, minlength=4).numpy()
        assert fit(counts, (cold / cold.sum()).double().numpy()).good
        assert not fit(counts, (hot / hot.sum()).double().numpy()).good


@pytest.mark.parametrize("accepting", [rejection, MEDUSA], ids=["rejection", "typical"])
def test_greedy_certain_and_undrafted_rows_beside_others_go_the_exact_way(accepting: Acceptance) -> None:
    """Each row decides what it decides alone, wherever it stands; only sampled drafts are another rule's."""
    place = world.make_world(WARM)
    kinds = [WARM, SamplingParams(), replace(WARM, presence_penalty=0.5), TRUNCATED, SamplingParams(bad_words=((1,),))]
    rows = [decode_row(Request(str(i), PROMPT, 99, kinds[i % 5], seed=i), (i % 8,), sequence_id=i) for i in range(40)]
    rows[7] = chunk_row(Request("p", PROMPT, 99, WARM), 0, 3, sequence_id=7)
    draft = drawn_chain(2)(place, rows)
    counts, certain = torch.arange(40) % 3, torch.arange(40) % 7 == 0
    counts[7] = 0
    draft = replace(draft, counts=counts, certain=certain)
    together = one_pass(place, accepting, rows, draft)
    for i, row in enumerate(rows):
        alone = part_of(draft, i)
        own = one_pass(place, accepting, [row], alone)
        for column, expected in zip(together, own, strict=True):
            assert torch.equal(column[i], expected[0])
        taken = row.samples and counts[i] and not row.request.sampling.greedy
        if not taken or (accepting is rejection and certain[i]):
            for column, expected in zip(own, one_pass(place, exact, [row], alone), strict=True):
                assert torch.equal(column, expected)


@pytest.mark.parametrize("accepting", [rejection, MEDUSA], ids=["rejection", "typical"])
def test_logits_that_are_no_numbers_end_a_row_where_the_exact_rule_ends_it(accepting: Acceptance) -> None:
    """After one token the target says nothing, so a draft that goes through it ends there, whatever was accepted."""
    place = world.make_world(WARM)
    token = 1 + int(place.p[0, 0, 1:].argmax())
    broken = replace(place, target=place.target.clone())
    broken.target[:, token] = torch.nan
    rows = [decode_row(row.request, (token,), sequence_id=row.sequence_id) for row in some_rows(place, 50)]
    outcome = one_pass(broken, accepting, rows, drawn_chain(2)(place, rows))
    assert (outcome.accepted == 0).all() and (outcome.emitted[:, 0] == NO_TOKEN).all()
    rows = some_rows(place, 1_000)
    draft = drawn_chain(2)(place, rows)
    right, outcome = one_pass(place, accepting, rows, draft), one_pass(broken, accepting, rows, draft)
    through = (draft.tokens[:, 0] == token) & (right.accepted > 0)
    assert through.any() and (outcome.accepted[through] == 1).all() and (outcome.bonus[through] == NO_TOKEN).all()
    elsewhere = (draft.tokens != token).all(dim=1)
    assert torch.equal(outcome.emitted[elsewhere], right.emitted[elsewhere])


@pytest.mark.parametrize("accepting", [rejection, MEDUSA], ids=["rejection", "typical"])
def test_a_request_that_forbids_every_token_is_told_apart(accepting: Acceptance) -> None:
    place = world.make_world(WARM)
    nothing = replace(WARM, logit_bias=tuple((token, -torch.inf) for token in range(world.VOCABULARY)))
    drafts = drawn_chain(2)(place, some_rows(place, 3))
    outcome = one_pass(place, accepting, some_rows(replace(place, sampling=nothing), 3), drafts)
    assert outcome.accepted.tolist() == [0] * 3 and outcome.bonus.tolist() == [NOTHING_ALLOWED] * 3


def choices_of(rows: Sequence[PlanRow]) -> ChoiceRows:
    """How each row's next token is chosen."""
    return ChoiceRows(
        [row.request.sampling for row in rows],
        [row.request.seed for row in rows],
        [row.next_position for row in rows],
        [row.choice for row in rows],
    )


def some_rows(place: world.World, count: int) -> list[PlanRow]:
    """Rows that decode their first token."""
    return [decode_row(Request(str(i), PROMPT, 99, place.sampling, seed=i), sequence_id=i) for i in range(count)]


def everywhere(law: torch.Tensor) -> torch.Tensor:
    """Logits of the same law after any context; tokens beyond it are impossible."""
    logits = torch.full((world.VOCABULARY,), -torch.inf)
    logits[: len(law)] = law.log()
    return logits.expand(world.VOCABULARY, world.VOCABULARY, world.VOCABULARY)


def part_of(draft: Draft, row: int) -> Draft:
    """A draft of one of its rows."""
    assert draft.probs is not None and draft.certain is not None
    pick = slice(row, row + 1)
    return Draft(draft.tokens[pick], draft.parents[pick], draft.counts[pick], draft.probs[pick], draft.certain[pick])
