"""The rules by which drafted tokens stay, by their names in a speculative configuration.

Every rule but the exact one is for the drafts of some rows; the rows beside them go the exact way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from trtspec.decoding.choosing import Place, choose_all, starts
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.plan import StepPlan
from trtspec.decoding.rng import Lane, seed_words, uniforms
from trtspec.decoding.sampling import FAULTS, ChoiceRows, choose
from trtspec.decoding.verify import Outcome, chain_rejection, settle, typical_acceptance, walk_tree
from trtspec.speculative import EXACT, REJECTION, TYPICAL, SpeculativeConfig
from trtspec.types import OutputLaw, SamplingParams

Acceptance = Callable[[StepPlan, Draft, Tensor, Editor], Outcome]
"""From a plan, its draft and the logits of its scored places to what is emitted."""

_LAWS = {EXACT: OutputLaw.EXACT, REJECTION: OutputLaw.EXACT, TYPICAL: OutputLaw.TYPICAL}
_PLACES_AT_ONCE = 64
"""Bounds the laws that are held at once: of a batch of trees they would take hundreds of megabytes."""


def rule(config: SpeculativeConfig) -> Acceptance:
    """The rule that a configuration asks for."""
    rules: Mapping[str, Acceptance] = {
        EXACT: exact,
        REJECTION: rejection,
        TYPICAL: partial(typical, threshold=config.typical_threshold, alpha=config.typical_alpha),
    }
    return rules[config.acceptance]


def law(config: SpeculativeConfig) -> OutputLaw:
    """What is known of the output under that rule."""
    return _LAWS[config.acceptance]


def exact(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor) -> Outcome:
    """A node is accepted iff it equals the target's own choice: with a seed, the text is that of plain decoding."""
    return walk_tree(draft, choose_all(plan, draft, logits, editor))


def rejection(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor) -> Outcome:
    """The papers' rule for chains that were drawn from a law, of sampled requests.

    The law is that of plain decoding; with a seed the text depends on how deep each pass drafted. At a position the
    drafter draws in lane DRAFT, whether the token stays in lane ACCEPT, and what follows the accepted ones in lane
    TARGET, all independent. A position behind a rejected one is drawn again with the same noise later on, which is
    fresh all the same: nothing that was emitted depends on it.
    """
    drawn = [taken and not sure for taken, sure in zip(_sampled(plan, draft), draft.rows_certain.tolist(), strict=True)]
    return _divided(drawn, _reject, PassRows(plan, draft, logits), editor)


def typical(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor, *, threshold: float, alpha: float) -> Outcome:
    """What is likely enough stays, in drafts of sampled requests: longer runs, and another law than the target's."""
    likely = partial(_keep_likely, threshold=threshold, alpha=alpha)
    return _divided(_sampled(plan, draft), likely, PassRows(plan, draft, logits), editor)


def _sampled(plan: StepPlan, draft: Draft) -> list[bool]:
    """Rows with a draft whose request does not take the best token alone."""
    counts = draft.counts.tolist()
    return [count > 0 and not row.request.sampling.greedy for row, count in zip(plan.rows, counts, strict=True)]


def _divided(
    taken: Sequence[bool], take: Callable[[PassRows, Editor], Outcome], rows: PassRows, editor: Editor
) -> Outcome:
    """One rule for the rows that are taken, the exact one for the others."""
    if not any(taken):
        return exact(*rows, editor)
    mine = [row for row, is_mine in enumerate(taken) if is_mine]
    others = [row for row, is_mine in enumerate(taken) if not is_mine]
    outcomes = [take(rows.pick(mine), editor)]
    if others:
        outcomes.append(exact(*rows.pick(others), editor))
    order = torch.tensor(mine + others).argsort()
    return Outcome(*(torch.cat(columns)[order] for columns in zip(*outcomes, strict=True)))


def _reject(rows: PassRows, editor: Editor) -> Outcome:
    plan, draft = rows.plan, rows.draft
    chains = [root.with_nodes() for root in starts(plan, draft)]
    places = [place for chain in chains for place in chain]
    target = torch.zeros(draft.rows, draft.width + 1, rows.logits.shape[1])
    target[[place.index for place in places], [place.node + 1 for place in places]] = rows.laws(places, editor)
    path, residual = chain_rejection(draft, target, _accept_draws(plan, draft.width))
    ends = [chain[max(steps) + 1] for chain, steps in zip(chains, path.tolist(), strict=True)]
    bonus = choose(residual.log(), _as_it_is(ends))
    lost = [index for index, token in enumerate(bonus.tolist()) if token in FAULTS]
    if lost:  # no token has a probability there, and the target says why
        bonus[lost] = rows.chosen([ends[index] for index in lost], editor)
    return settle(draft, path, bonus)


def _as_it_is(places: Sequence[Place]) -> ChoiceRows:
    """How to draw at some places from laws that are processed already."""
    return ChoiceRows(
        [SamplingParams(temperature=1.0)] * len(places),
        [place.row.request.seed for place in places],
        [place.position for place in places],
        [place.row.choice for place in places],
    )


def _accept_draws(plan: StepPlan, width: int) -> Tensor:
    """One for each node of a chain, [B, N]."""
    positions = torch.tensor([row.next_position for row in plan.rows]).unsqueeze(1) + torch.arange(width)
    choices = torch.tensor([row.choice for row in plan.rows]).unsqueeze(1)
    seeds = seed_words([row.request.seed for row in plan.rows]).unsqueeze(2)
    return uniforms(seeds, positions, choices, torch.zeros_like(positions), Lane.ACCEPT)


def _keep_likely(rows: PassRows, editor: Editor, *, threshold: float, alpha: float) -> Outcome:
    draft = rows.draft
    trees = [root.with_nodes() for root in starts(rows.plan, draft)]
    likelihood, entropy = torch.zeros(draft.tokens.shape), torch.zeros(draft.tokens.shape)
    inner = [place for tree in trees for place in tree if place.children]
    for start in range(0, len(inner), _PLACES_AT_ONCE):
        part = inner[start : start + _PLACES_AT_ONCE]
        laws = rows.laws(part, editor)
        of = [i for i, place in enumerate(part) for _ in place.children]
        row, node = [part[i].index for i in of], [node for place in part for node in place.children]
        likelihood[row, node] = laws[of, draft.tokens[row, node]]
        entropy[row, node] = torch.special.entr(laws).sum(dim=1)[of]
    path = typical_acceptance(draft, likelihood, entropy, threshold, alpha)
    ends = [tree[max(steps) + 1] for tree, steps in zip(trees, path.tolist(), strict=True)]  # children come later
    return settle(draft, path, rows.chosen(ends, editor))
