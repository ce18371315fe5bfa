"""Some rows of a pass as a pass of their own, for rules that are for some rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.decoding.choosing import Place, choice_rows
from trtspec.decoding.draft import Draft
from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import StepPlan, roots
from trtspec.decoding.sampling import choose, token_law, token_scores
from trtspec.decoding.sending import send, sent


class PassRows(NamedTuple):
    """Rows with their drafts and the logits of their scored places."""

    plan: StepPlan
    draft: Draft
    logits: Tensor

    def pick(self, rows: Sequence[int]) -> PassRows:
        """Some of these, in order."""
        if len(rows) == len(self.plan.rows):
            return self
        sizes = [row.scored + count for row, count in zip(self.plan.rows, self.draft.counts.tolist(), strict=True)]
        begins = list(accumulate(sizes, initial=0))
        places = [place for row in rows for place in range(begins[row], begins[row + 1])]
        probs, certain = self.draft.probs, self.draft.certain
        draft = Draft(
            tokens=self.draft.tokens[rows],
            parents=self.draft.parents[rows],
            counts=self.draft.counts[rows],
            probs=None if probs is None else probs[sent(rows, torch.int64, probs.device)],
            certain=None if certain is None else certain[rows],
        )
        logits = self.logits[sent(places, torch.int64, self.logits.device)]
        return PassRows(replace(self.plan, rows=tuple(self.plan.rows[row] for row in rows)), draft, logits)

    def chosen(self, places: Sequence[Place], editor: Editor) -> Tensor:
        """The target's tokens after some places, [P]."""
        return choose(self._at(places), choice_rows(places, editor, self.logits)).cpu()

    def laws(self, places: Sequence[Place], editor: Editor) -> Tensor:
        """The target's laws after some places, [P, V]."""
        return token_law(self._at(places), choice_rows(places, editor, self.logits)).cpu()

    def scores(self, places: Sequence[Place], editor: Editor) -> Tensor:
        """Scores whose softmax the laws are, [P, V] float32, where the logits are."""
        return token_scores(self._at(places), choice_rows(places, editor, self.logits))

    def _at(self, places: Sequence[Place]) -> Tensor:
        nodes = torch.tensor([place.node + 1 for place in places])
        index = roots(self.plan, self.draft)[[place.index for place in places]] + nodes
        return self.logits[send(index, self.logits.device)]
