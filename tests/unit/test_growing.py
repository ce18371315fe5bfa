"""What a drafter of several modules is fed with while a draft grows."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.views import view_row
from trtspec.decoding.candidates import Candidates
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import DraftOutput, DraftPlan, DraftRow
from trtspec.decoding.growing import Module, Root, grow
from trtspec.decoding.sampling import ChoiceRows
from trtspec.decoding.trees import StaticShape, chain


class Network:
    """Says of each place a number of its own, and keeps what it was fed with."""

    token_ids = None
    positions = 100

    def __init__(self, first: float) -> None:
        self.fed: list[list[float]] = []
        self._next = first

    def forward(self, plan: DraftPlan, draft: Draft, states: Tensor | None) -> DraftOutput:
        assert states is not None
        self.fed.append(states.flatten().tolist())
        said = torch.arange(len(states)).float().unsqueeze(1) + self._next
        self._next += 10
        return DraftOutput(torch.zeros(len(states), 4), said)


def test_a_node_keeps_the_state_it_was_fed_with_while_one_module_goes_on() -> None:
    """The second module says 10 after the root and 11 after the first node, then 20 and so on. The first node came
    from the first module, which said 1 after the root; each node after it is fed with what was said at its parent."""
    first, second = Network(0.0), Network(10.0)
    row = view_row([5, 6], 4)
    modules = [
        Module(first, [Root(row, 1, torch.tensor([0.5]))]),  # type: ignore[arg-type]
        Module(second, [Root(row, 0, torch.tensor([0.25]))]),  # type: ignore[arg-type]
    ]

    def guess(logits: Tensor, rows: ChoiceRows) -> Candidates:
        return Candidates(torch.full((len(logits), 1), 2), torch.zeros(len(logits), 1))

    start = DraftOutput(torch.zeros(1, 4), torch.tensor([[1.0]]))
    draft = grow(modules, start, StaticShape(chain(4)), guess)
    assert draft.tokens.tolist() == [[2, 2, 2, 2]]
    assert first.fed == []
    assert second.fed == [[0.25, 1.0], [0.25, 1.0, 11.0], [0.25, 1.0, 11.0, 22.0]]


def test_where_a_drafters_row_ends() -> None:
    row = DraftRow([7, 8, 9], 4, (), 1)
    assert (row.fed, row.next_position) == (3, 7)
