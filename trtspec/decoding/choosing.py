"""Where a pass chooses, and what: the target's token after every place of its rows that the walk can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trtspec.decoding.draft import ROOT, Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import PlanRow, StepPlan, roots
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, best_tokens, choose


@dataclass(frozen=True, slots=True)
class _Walk:
    """A place of a row where the target chooses, once all before it on its path were chosen."""

    index: int
    """Of the row in the plan."""
    row: PlanRow
    tokens: Sequence[int]
    """Of the row's nodes."""
    parents: Sequence[int]
    node: int = ROOT
    path: tuple[int, ...] = ()
    """Tokens from the root to the node."""

    def after(self, token: int) -> tuple[_Walk, ...]:
        """Where the target chooses next once it chose a token here: at the first child that has it, or nowhere."""
        for node, (parent, drafted) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent == self.node and drafted == token:
                return (replace(self, node=node, path=(*self.path, token)),)
        return ()


def choose_all(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor) -> Tensor:
    """The target's token after each root and each node, [B, N + 1]; NO_TOKEN where nothing is sampled.

    Where more than an arg-max is to be done, only places that the walk reaches are chosen, and others stay NO_TOKEN.
    """
    greedy = [row.samples and _takes_the_best(row) for row in plan.rows]
    if all(greedy) and len(logits) == draft.rows:  # every pass of plain greedy decoding
        return best_tokens(logits).cpu().unsqueeze(1)
    ids = torch.full((draft.rows, draft.width + 1), NO_TOKEN)
    first = roots(plan, draft)
    if any(greedy):
        columns = torch.arange(draft.width + 1)
        places = (columns <= draft.counts.unsqueeze(1)) & torch.tensor(greedy).unsqueeze(1)
        chosen = (first.unsqueeze(1) + columns)[places]
        ids[places] = best_tokens(logits if len(chosen) == len(logits) else logits[chosen]).cpu()
    walks = _starts(plan, draft, greedy)
    while walks:
        index, column = [walk.index for walk in walks], torch.tensor([walk.node + 1 for walk in walks])
        chosen = choose(logits[first[index] + column], _choice_rows(walks, editor, logits)).cpu()
        ids[index, column] = chosen
        walks = [later for walk, token in zip(walks, chosen.tolist(), strict=True) for later in walk.after(token)]
    return ids


def _takes_the_best(row: PlanRow) -> bool:
    """The arg-max of the model's logits decides at every place of the row."""
    sampling = row.request.sampling
    long_enough = row.next_position >= len(row.request.prompt) + sampling.min_tokens
    return sampling.greedy and not sampling.edits_any_length and long_enough


def _starts(plan: StepPlan, draft: Draft, done: Sequence[bool]) -> list[_Walk]:
    """The roots where a token is still to be chosen."""
    columns = zip(plan.rows, draft.counts.tolist(), draft.tokens.tolist(), draft.parents.tolist(), strict=True)
    return [
        _Walk(index, row, tokens[:count], parents[:count])
        for index, (row, count, tokens, parents) in enumerate(columns)
        if row.samples and not done[index]
    ]


def _choice_rows(walks: Sequence[_Walk], editor: Editor, logits: Tensor) -> ChoiceRows:
    """Nodes of one depth choose the same position, so they share their noise."""
    return ChoiceRows(
        [walk.row.request.sampling for walk in walks],
        [walk.row.request.seed for walk in walks],
        [walk.row.next_position + len(walk.path) for walk in walks],
        [walk.row.choice for walk in walks],
        [editor.edits(walk.row, walk.path, logits) for walk in walks],
    )
