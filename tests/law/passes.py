"""Generations in a random world through whole passes: drafters that draw as drafters do, and the rules of engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.law.world import PROMPT_LENGTH, VOCABULARY, World, node_contexts
from tests.plans import decode_row, plan_of
from trtspec.decoding.acceptance import Acceptance
from trtspec.decoding.draft import Draft
from trtspec.decoding.drawing import draw
from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.sampling import ChoiceRows
from trtspec.decoding.verify import Outcome
from trtspec.guides import Guide
from trtspec.types import Request

PROMPT = (0,) * PROMPT_LENGTH
PassDrafter = Callable[[World, Sequence[PlanRow]], Draft]


class Generated(NamedTuple):
    """The first tokens of many outputs."""

    tokens: Tensor  # [draws, length]
    first: Outcome
    """Of the first pass."""

    def counts(self) -> NDArray[np.int64]:
        """How often each run of tokens came, flat."""
        cells = torch.zeros(len(self.tokens), dtype=torch.int64)
        for column in self.tokens.T:
            cells = cells * VOCABULARY + column
        return np.bincount(cells.numpy(), minlength=VOCABULARY ** self.tokens.shape[1])


def generate(
    place: World, rule: Acceptance, drafter: PassDrafter, *, draws: int, length: int, guide: Guide | None = None
) -> Generated:
    """The first `length` tokens of an output each of so many seeds, in as many passes as the drafts' fates ask for."""
    outputs: list[list[int]] = [[] for _ in range(draws)]
    requests = [Request(str(i), PROMPT, 99, place.sampling, seed=5_000 + i, guide=guide) for i in range(draws)]
    live, first = list(range(draws)), None
    while live:
        rows = [decode_row(requests[i], outputs[i], sequence_id=i) for i in live]
        outcome = one_pass(place, rule, rows, drafter(place, rows))
        first = first or outcome
        for i, emitted, accepted in zip(live, outcome.emitted.tolist(), outcome.accepted.tolist(), strict=True):
            outputs[i] += emitted[: accepted + 1]
        live = [i for i in live if len(outputs[i]) < length]
    assert first is not None
    return Generated(torch.tensor([output[:length] for output in outputs]), first)


def one_pass(place: World, rule: Acceptance, rows: Sequence[PlanRow], draft: Draft) -> Outcome:
    """What a rule makes of a draft under the world's target."""
    places = node_contexts(draft, contexts(rows))
    times = (torch.arange(draft.width + 1) <= draft.counts.unsqueeze(1)).long()
    times[:, 0] = torch.tensor([row.scored for row in rows])  # what is said in a prompt is read by nobody here
    logits = place.target[places[..., 0], places[..., 1]].flatten(0, 1).repeat_interleave(times.flatten(), dim=0)
    return rule(plan_of(*rows), draft, logits, Editor())


def contexts(rows: Sequence[PlanRow]) -> Tensor:
    """The last two tokens of each row, [B, 2]."""
    return torch.tensor([row.history[-2:] for row in rows])


def drawn_chain(depth: int) -> PassDrafter:
    """Chains that the drafter draws from its own processed law, history and path included."""

    def draft(place: World, rows: Sequence[PlanRow]) -> Draft:
        before, last = contexts(rows).T
        editor = Editor()
        paths: list[tuple[int, ...]] = [()] * len(rows)
        tokens, laws = [], []
        for step in range(depth):
            logits = place.drafter[before, last]
            choices = ChoiceRows(
                [row.request.sampling for row in rows],
                [row.request.seed for row in rows],
                [row.next_position + step for row in rows],
                [row.choice for row in rows],
                [editor.edits(row, path, logits) for row, path in zip(rows, paths, strict=True)],
            )
            drawn = draw(logits, choices, None, VOCABULARY)
            before, last = last, drawn.tokens
            paths = [(*path, token) for path, token in zip(paths, last.tolist(), strict=True)]
            tokens.append(last)
            laws.append(drawn.probs)
        parents = torch.arange(-1, depth - 1).expand(len(rows), depth)
        return Draft(torch.stack(tokens, 1), parents, torch.full((len(rows),), depth), torch.stack(laws, 1))

    return draft


def likeliest_tree(place: World, rows: Sequence[PlanRow]) -> Draft:
    """The drafter's two best tokens, and the best one after each."""
    before, last = contexts(rows).T
    first, second = place.drafter[before, last].topk(2, dim=1).indices.T
    after = [place.drafter[last, token].argmax(dim=1) for token in (first, second)]
    parents = torch.tensor([-1, -1, 0, 1]).expand(len(rows), 4)
    return Draft(torch.stack([first, second, *after], 1), parents, torch.full((len(rows),), 4))


def run_law(place: World, length: int) -> NDArray[np.float64]:
    """The enumerated law of the first `length` tokens, flat."""
    law, ends = torch.ones(1, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.int64)
    for _ in range(length):
        law = (law.unsqueeze(1) * place.p[ends[:, 0], ends[:, 1]]).flatten()
        every = torch.arange(VOCABULARY).repeat(len(ends))
        ends = torch.stack([ends[:, 1].repeat_interleave(VOCABULARY), every], dim=1)
    return law.numpy()
