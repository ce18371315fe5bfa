"""One pass, from plan to outcome: the straight line that every method and the baseline take."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.decoding.draft import Draft, depths
from trtspec.decoding.plan import Runner, StepPlan, TargetOutput
from trtspec.decoding.proposer import Proposer
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose
from trtspec.decoding.verify import Outcome, walk_tree


def run_pass(plan: StepPlan, proposer: Proposer, runner: Runner) -> tuple[Draft, Outcome]:
    """Propose, forward, choose, verify. Nothing shared is changed."""
    draft = proposer.propose(plan.view())
    if any(count > row.max_nodes for row, count in zip(plan.rows, draft.counts.tolist(), strict=True)):
        raise ValueError(f"the proposer drafted {draft.counts.tolist()} nodes, more than its rows have room for")
    target = runner.forward(plan, draft)
    return draft, walk_tree(draft, choose_all(plan, draft, target))


def choose_all(plan: StepPlan, draft: Draft, target: TargetOutput) -> Tensor:
    """The target's token after each root and each node, [B, N + 1]; NO_TOKEN where nothing is sampled."""
    sampled = torch.tensor([row.samples for row in plan.rows])
    places = torch.arange(draft.width + 1) <= draft.counts.unsqueeze(1)
    places &= sampled.unsqueeze(1)
    ids = torch.full(places.shape, NO_TOKEN)
    if sampled.any():
        ids[places] = choose(target.logits, _choice_rows(plan, draft)).cpu()
    return ids


def _choice_rows(plan: StepPlan, draft: Draft) -> ChoiceRows:
    """Nodes of one depth choose the same position, so they share their noise."""
    counts = draft.counts.tolist()
    deep = depths(draft).tolist()
    rows = [row for row, count in zip(plan.rows, counts, strict=True) if row.samples for _ in range(count + 1)]
    positions = [
        row.next_position + depth
        for row, count, levels in zip(plan.rows, counts, deep, strict=True)
        if row.samples
        for depth in (0, *levels[:count])
    ]
    return ChoiceRows(
        [row.request.sampling for row in rows],
        [row.request.seed for row in rows],
        positions,
        [row.choice for row in rows],
    )
