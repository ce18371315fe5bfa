"""`draft_model`: a small model of its own drafts what it would say itself (Leviathan et al. 2023; Chen et al. 2023).

Its cache holds each token at the token's own position. Drafted tokens that were accepted lie there already; only what
is new is fed. Where the text outgrows the small model's context, it pauses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trtspec.decoding.candidates import candidates, drawn
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter, DraftOutput, DraftPlan, DraftRow
from trtspec.decoding.growing import Guess, Module, Root, grow
from trtspec.decoding.proposer import Advance, BatchView, Needs, SequenceView, among
from trtspec.decoding.trees import shape_of
from trtspec.speculative import REJECTION, SpeculativeConfig


@dataclass(frozen=True, slots=True)
class _Cached:
    """What the model's cache holds of a sequence."""

    blocks: Sequence[int]
    """The block table in which it does: another one means that the text was computed again."""
    length: int
    """So many positions in front hold the text, or what was drafted to follow it."""


class DraftModelProposer:
    """Drafts chains or trees, as the configuration says."""

    def __init__(self, config: SpeculativeConfig, drafter: Drafter) -> None:
        self._shape = shape_of(config)
        self._min_confidence = config.min_confidence
        (self._model,) = drafter.modules
        self.needs = Needs(config.draft_nodes, tree=not self._shape.is_chain, caches=True)
        self._guess: Guess = partial(candidates, token_ids=self._model.token_ids, count=self._shape.children)
        if config.acceptance == REJECTION:
            self._guess = partial(drawn, token_ids=self._model.token_ids, vocabulary=drafter.vocabulary_size)
        self._cached: dict[int, _Cached] = {}

    def propose(self, view: BatchView) -> Draft:
        for sequence_id in view.released:
            self._cached.pop(sequence_id, None)
        ends = {item.sequence_id: self._note(item) for item in view.advances if self._follows(item)}
        drafting = [row for row in view.rows if self._drafts(row)]
        ends |= {row.sequence_id: len(row.tokens) for row in drafting}
        texts = {item.sequence_id: item.tokens for item in view.advances}
        texts |= {row.sequence_id: row.tokens for row in drafting}
        if not ends:
            return Draft.empty(len(view.rows))
        first = self._feed(texts, ends, {row.sequence_id: None for row in drafting})
        if not drafting:
            return Draft.empty(len(view.rows))
        roots = [Root(row, len(row.tokens) - 1, None) for row in drafting]
        draft = grow([Module(self._model, roots)], first, self._shape, self._guess, self._min_confidence)
        self._note_drafted(drafting, draft)
        return among(view, drafting, draft)

    def _feed(
        self, texts: Mapping[int, Sequence[int]], ends: Mapping[int, int], drafting: Mapping[int, None]
    ) -> DraftOutput:
        """Bring each sequence's cache up to the given length; says what follows those that draft, in their order."""
        rows = []
        for sequence_id in [*(ends.keys() - drafting.keys()), *drafting]:
            cached = self._cached[sequence_id]
            begin = min(cached.length, ends[sequence_id] - 1)
            tokens = texts[sequence_id][begin : ends[sequence_id]]
            rows.append(DraftRow(tokens, begin, cached.blocks, scored=int(sequence_id in drafting)))
            self._cached[sequence_id] = replace(cached, length=ends[sequence_id])
        return self._model.forward(DraftPlan(tuple(rows)), Draft.empty(len(rows)), None)

    def _note(self, advance: Advance) -> int:
        """Correct what is known of a sequence's cache by what was committed; returns how much of the text that is."""
        end = min(advance.start + advance.count, self._model.positions)
        cached = self._cached.get(advance.sequence_id)
        kept = cached.length if cached and cached.blocks is advance.blocks else advance.start
        self._cached[advance.sequence_id] = _Cached(advance.blocks, min(kept, end))
        return end

    def _note_drafted(self, drafting: Sequence[SequenceView], draft: Draft) -> None:
        """In a chain each node but the last was fed, at the position where it stays if it is accepted."""
        if self._shape.is_chain:
            for row, count in zip(drafting, draft.counts.tolist(), strict=True):
                length = len(row.tokens) + max(count - 1, 0)
                self._cached[row.sequence_id] = _Cached(row.blocks, length)

    def _follows(self, advance: Advance) -> bool:
        return advance.request.drafts and advance.start < self._model.positions

    def _drafts(self, row: SequenceView) -> bool:
        reached = len(row.tokens) + row.max_depth
        cached = self._cached.get(row.sequence_id)
        known = cached is not None and cached.blocks is row.blocks
        return row.max_depth > 0 and known and reached <= self._model.positions
