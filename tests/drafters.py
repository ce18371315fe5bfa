"""Drafters that are functions of the text they were given, behind the real proposers.

A network keeps token ids where a model keeps keys and values, and reads them back through the block table; states are
numbers of texts. So a wrong slot, position, state, parent or pairing shows at once, by assertion.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.scripted import Law, Texts, greedy
from trtspec.decoding.draft import ROOT, Draft
from trtspec.decoding.drafting import Drafter, DraftOutput, DraftPlan, DraftRow
from trtspec.decoding.proposer import LAST_HIDDEN


class ScriptedNetwork:
    """Implements `DraftNetwork` for a law; `shift` as in the proposers: position i holds the token at i + shift."""

    def __init__(
        self,
        law: Law,
        texts: Texts,
        shift: int,
        *,
        block_tokens: int = 4,
        positions: int = 10_000,
        token_ids: Sequence[int] | None = None,
        whole_prefix: bool = True,
    ) -> None:
        self.law = law
        self.texts = texts
        self.positions = positions
        self.token_ids = None if token_ids is None else torch.tensor(token_ids)
        self.places = 0
        """How many tokens were fed in all."""
        self._shift = shift
        self._block_tokens = block_tokens
        self._whole_prefix = whole_prefix
        self._cells: dict[int, int] = {}

    def states(self, features: Tensor) -> Tensor:
        return features.clone()

    def forward(self, plan: DraftPlan, draft: Draft, states: Tensor | None) -> DraftOutput:
        nodes = [draft.tokens[i, :count].tolist() for i, count in enumerate(draft.counts.tolist())]
        for row, tokens in zip(plan.rows, nodes, strict=True):
            assert row.next_position <= self.positions, "more is fed than the network's context holds"
            for offset, token in enumerate([*row.tokens, *tokens]):
                self._cells[self._slot(row, row.start + offset)] = token
        told = iter([] if states is None else states[:, 0].tolist())
        texts: list[tuple[int, ...]] = []
        for i, row in enumerate(plan.rows):
            fed = [self._fed(row, offset, told) for offset in range(row.fed)]
            said = {ROOT: fed[-1]}
            for node, (token, parent) in enumerate(zip(nodes[i], draft.parents[i].tolist(), strict=False)):
                said[node] = (*said[parent], token)
                if states is not None:
                    assert self.texts.text(next(told)) == said[parent], "a node was fed with a wrong state"
            texts += fed[len(fed) - row.scored :] + [said[node] for node in range(len(nodes[i]))]
            self.places += row.fed + len(nodes[i])
        assert next(told, None) is None, "more states than tokens"
        logits = torch.tensor([self.law(text) for text in texts], dtype=torch.float32)
        kept = logits if self.token_ids is None or not texts else logits[:, self.token_ids]
        return DraftOutput(kept, torch.tensor([[float(self.texts.number(text))] for text in texts]))

    def _fed(self, row: DraftRow, offset: int, told: object) -> tuple[int, ...]:
        """The text up to a fed token, checked against its state and against what the cache holds."""
        position = row.start + offset
        held = tuple(self._cells[self._slot(row, place)] for place in range(position + 1))
        if self._shift == 0:
            return held
        before = self.texts.text(next(told))  # type: ignore[call-overload]
        assert len(before) == position + self._shift, "a token was fed with the state of another place"
        text = (*before, row.tokens[offset])
        if self._whole_prefix:
            assert held == text[self._shift :], "the cache does not hold what was committed"
        return text

    def _slot(self, row: DraftRow, position: int) -> int:
        return row.blocks[position // self._block_tokens] * self._block_tokens + position % self._block_tokens


class ScriptedHeads:
    """Implements `HeadsNetwork`: each head says what plain decoding would come to after its own greedy choices."""

    token_ids = None

    def __init__(self, law: Law, texts: Texts, heads: int) -> None:
        self._law = law
        self._texts = texts
        self._heads = heads

    def forward(self, features: Tensor) -> Tensor:
        return torch.tensor([self._one(self._texts.text(number)) for number in features[:, 0].tolist()])

    def _one(self, text: tuple[int, ...]) -> list[Sequence[float]]:
        coming = greedy(self._law, text, self._heads)
        return [self._law((*text, *coming[: head + 1])) for head in range(self._heads)]


def stateful(law: Law, texts: Texts, modules: int = 1, **settings: object) -> Drafter:
    """EAGLE's or MTP's drafter."""
    networks = tuple(ScriptedNetwork(law, texts, shift, **settings) for shift in range(1, modules + 1))  # type: ignore[arg-type]
    return Drafter(networks, features=(LAST_HIDDEN,))


def whole_model(law: Law, texts: Texts, **settings: object) -> Drafter:
    return Drafter((ScriptedNetwork(law, texts, 0, **settings),), vocabulary_size=16)  # type: ignore[arg-type]


def heads(law: Law, texts: Texts, count: int = 4) -> Drafter:
    return Drafter(heads=ScriptedHeads(law, texts, count), features=(LAST_HIDDEN,))
