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
from trtspec.decoding.sending import send


@dataclass(frozen=True, slots=True)
class Place:
    """A root or node of a row, after which the target chooses."""

    index: int
    """Of the row in the plan."""
    row: PlanRow
    tokens: Sequence[int]
    """Of the row's nodes."""
    parents: Sequence[int]
    node: int = ROOT
    path: tuple[int, ...] = ()
    """Tokens from the root to the node."""

    @property
    def position(self) -> int:
        """Of the token that is chosen here. Nodes of one depth choose the same one, so they share its noise."""
        return self.row.next_position + len(self.path)

    def after(self, token: int) -> tuple[Place, ...]:
        """Where the target chooses next once it chose a token here: at the first child that has it, or nowhere."""
        return tuple(self._at(node) for node in self.children if self.tokens[node] == token)[:1]

    @property
    def children(self) -> list[int]:
        """Nodes that follow here."""
        return [node for node, parent in enumerate(self.parents) if parent == self.node]

    def with_nodes(self) -> list[Place]:
        """This root and all nodes of its row, in their order."""
        places = [self]
        for node, parent in enumerate(self.parents):
            places.append(places[parent + 1]._at(node))
        return places

    def _at(self, node: int) -> Place:
        """A child of this place."""
        return replace(self, node=node, path=(*self.path, self.tokens[node]))


def choose_all(plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor) -> Tensor:
    """The target's token after each root and each node, [B, N + 1]; NO_TOKEN where nothing is sampled.

    Where more than an arg-max is to be done, only places that the walk reaches are chosen, and others stay NO_TOKEN.
    """
    greedy = [row.samples and row.request.sampling.greedy and not is_edited(row) for row in plan.rows]
    if all(greedy) and len(logits) == draft.rows:  # every pass of plain greedy decoding
        return best_tokens(logits).cpu().unsqueeze(1)
    ids = torch.full((draft.rows, draft.width + 1), NO_TOKEN)
    first = roots(plan, draft)
    if any(greedy):
        columns = torch.arange(draft.width + 1)
        places = (columns <= draft.counts.unsqueeze(1)) & torch.tensor(greedy).unsqueeze(1)
        chosen = (first.unsqueeze(1) + columns)[places]
        picked = logits if len(chosen) == len(logits) else logits[send(chosen, logits.device)]
        ids[places] = best_tokens(picked).cpu()
    choose_reached([not best for best in greedy], ids, plan, draft, logits, editor)
    return ids


def choose_reached(
    taken: Sequence[bool], ids: Tensor, plan: StepPlan, draft: Draft, logits: Tensor, editor: Editor
) -> None:
    """Write what is chosen in the taken rows into `ids`, at the places that the walk reaches, level by level."""
    first = roots(plan, draft)
    walks = [root for root in starts(plan, draft) if root.row.samples and taken[root.index]]
    while walks:
        index, column = [place.index for place in walks], torch.tensor([place.node + 1 for place in walks])
        picked = logits[send(first[index] + column, logits.device)]
        chosen = choose(picked, choice_rows(walks, editor, logits)).cpu()
        ids[index, column] = chosen
        walks = [later for place, token in zip(walks, chosen.tolist(), strict=True) for later in place.after(token)]


def starts(plan: StepPlan, draft: Draft) -> list[Place]:
    """The root of each row."""
    columns = zip(plan.rows, draft.counts.tolist(), draft.tokens.tolist(), draft.parents.tolist(), strict=True)
    return [
        Place(index, row, tokens[:count], parents[:count])
        for index, (row, count, tokens, parents) in enumerate(columns)
    ]


def choice_rows(places: Sequence[Place], editor: Editor, logits: Tensor) -> ChoiceRows:
    """How the target chooses at each place; of the logits only width and device matter."""
    return ChoiceRows(
        [place.row.request.sampling for place in places],
        [place.row.request.seed for place in places],
        [place.position for place in places],
        [place.row.choice for place in places],
        [editor.edits(place.row, place.path, logits) for place in places],
    )


def is_edited(row: PlanRow) -> bool:
    """Somewhere in the row, logits change by token or by history before anything is chosen."""
    sampling = row.request.sampling
    if row.request.guide is not None:
        return True
    return sampling.edits_any_length or row.next_position < len(row.request.prompt) + sampling.min_tokens
