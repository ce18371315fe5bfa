"""Where a pass is decided: the seam between the rules of acceptance and what does their arithmetic.

The chooser here is plain PyTorch and right on any device. On a GPU it waits once for the tokens of greedy rows, which
are those at all places, and level by level of the drafts for others. Executors have others for their devices, which
decide the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from trtspec.decoding.choosing import Place, choose_all, starts
from trtspec.decoding.edits import Editor
from trtspec.decoding.pass_rows import PassRows
from trtspec.decoding.plan import StepPlan
from trtspec.decoding.rng import Lane, seed_words, uniforms
from trtspec.decoding.sampling import FAULTS, ChoiceRows, choose
from trtspec.decoding.verify import Outcome, chain_rejection, settle, walk_tree
from trtspec.types import SamplingParams


class Chooser(Protocol):
    """Decides the rows of a pass. Outcomes lie on the CPU, whatever the logits do."""

    def exact(self, rows: PassRows, editor: Editor) -> Outcome:
        """Down each draft as far as its nodes equal the target's own choices, then one choice more."""
        ...

    def rejection(self, rows: PassRows, editor: Editor) -> Outcome:
        """The papers' rule, for chains of at least one node that were all drawn from `draft.probs`."""
        ...


class HostChooser:
    """Implements `Chooser` with `choose`, `walk_tree` and `chain_rejection`: the oracle of every other one."""

    def exact(self, rows: PassRows, editor: Editor) -> Outcome:
        return walk_tree(rows.draft, choose_all(*rows, editor))

    def rejection(self, rows: PassRows, editor: Editor) -> Outcome:
        plan, draft = rows.plan, rows.draft
        chains = [root.with_nodes() for root in starts(plan, draft)]
        places = [place for chain in chains for place in chain]
        target = torch.zeros(draft.rows, draft.width + 1, rows.logits.shape[1])
        target[[place.index for place in places], [place.node + 1 for place in places]] = rows.laws(places, editor)
        here = draft if draft.probs is None else replace(draft, probs=draft.probs.cpu())
        path, residual = chain_rejection(here, target, accept_draws(plan, draft.width))
        bonus = choose(residual.log(), _as_it_is(ends(chains, path)))
        return settled(rows, chains, path, bonus, editor)


HOST = HostChooser()


def ends(chains: Sequence[Sequence[Place]], path: Tensor) -> list[Place]:
    """Where each row's path stops, of all its places in order; parents come before children."""
    return [chain[max(steps) + 1] for chain, steps in zip(chains, path.tolist(), strict=True)]


def settled(rows: PassRows, chains: Sequence[Sequence[Place]], path: Tensor, bonus: Tensor, editor: Editor) -> Outcome:
    """The outcome of rejection. Where no token has a probability, the target says why."""
    lost = [index for index, token in enumerate(bonus.tolist()) if token in FAULTS]
    if lost:
        stops = ends(chains, path)
        bonus[lost] = rows.chosen([stops[index] for index in lost], editor)
    return settle(rows.draft, path, bonus)


def accept_draws(plan: StepPlan, width: int) -> Tensor:
    """One for each node of a chain, [B, N]."""
    positions = torch.tensor([row.next_position for row in plan.rows]).unsqueeze(1) + torch.arange(width)
    choices = torch.tensor([row.choice for row in plan.rows]).unsqueeze(1)
    seeds = seed_words([row.request.seed for row in plan.rows]).unsqueeze(2)
    return uniforms(seeds, positions, choices, torch.zeros_like(positions), Lane.ACCEPT)


def _as_it_is(places: Sequence[Place]) -> ChoiceRows:
    """How to draw at some places from laws that are processed already."""
    return ChoiceRows(
        [SamplingParams(temperature=1.0)] * len(places),
        [place.row.request.seed for place in places],
        [place.position for place in places],
        [place.row.choice for place in places],
    )
