"""`medusa`: heads on the target's last hidden state guess several tokens at once (Cai et al. 2024, section 2.1).

Head k guesses the token k + 1 places after the root, whatever is between: so a tree takes each head's best guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.decoding.candidates import Candidates, candidates
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter
from trtspec.decoding.growing import coming_choices
from trtspec.decoding.growth import Growth
from trtspec.decoding.proposer import BatchView, Needs, SequenceView, among
from trtspec.decoding.sampling import take
from trtspec.decoding.trees import shape_of
from trtspec.speculative import SpeculativeConfig


class MedusaProposer:
    """Drafts the tree, or the chain, of the configuration. It has no cache: a state tells all."""

    def __init__(self, config: SpeculativeConfig, drafter: Drafter) -> None:
        if drafter.heads is None:
            raise ValueError("medusa drafts with heads, and the drafter has none")
        self._heads = drafter.heads
        self._shape = shape_of(config)
        self._min_confidence = config.min_confidence
        self._wanted = (self._heads.token_ids, self._shape.children)
        self.needs = Needs(config.draft_nodes, tree=not self._shape.is_chain, features=drafter.features)
        self._last: dict[int, Tensor] = {}
        """By sequence: the features of the last position that the target computed."""

    def propose(self, view: BatchView) -> Draft:
        for sequence_id in view.released:
            self._last.pop(sequence_id, None)
        for advance in view.advances:
            if advance.features is not None and advance.request.drafts:
                self._last[advance.sequence_id] = advance.features[-1].clone()
        drafting = [row for row in view.rows if row.max_depth and row.sequence_id in self._last]
        if not drafting:
            return Draft.empty(len(view.rows))
        draft = self._grow(drafting)
        return among(view, drafting, draft)

    def _grow(self, rows: Sequence[SequenceView]) -> Draft:
        growth = Growth(self._shape, rows, self._min_confidence)
        logits = self._heads.forward(torch.stack([self._last[row.sequence_id] for row in rows]))
        ask = self._at_each_place if any(row.guided for row in rows) else self._at_one_place
        for head in logits.unbind(1):
            if not growth.add(ask(head, rows, growth)):
                break
        return growth.draft()

    def _at_one_place(self, head: Tensor, rows: Sequence[SequenceView], growth: Growth) -> Candidates:
        """A head guesses the same wherever it guesses."""
        coming = coming_choices(rows, range(len(rows)), growth, head.device)
        found = candidates(head, take(coming, range(0, len(rows) * growth.places, growth.places)), *self._wanted)
        return Candidates(*(part.repeat_interleave(growth.places, 0) for part in (found.tokens, found.logprobs)))

    def _at_each_place(self, head: Tensor, rows: Sequence[SequenceView], growth: Growth) -> Candidates:
        """What may follow is another thing at each place."""
        coming = coming_choices(rows, range(len(rows)), growth, head.device)
        return candidates(head.repeat_interleave(growth.places, 0), coming, *self._wanted)
