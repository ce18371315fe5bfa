"""`eagle`, `eagle3` and `mtp`: drafters that read the target's hidden states, over networks that differ.

Each token is fed beside the state of the place before it (Li et al. 2024, EAGLE, section 4.1). Module m, counted from
1, pairs the state of position i with the token at i + m and keeps both at position i of its cache. What the last pass
committed is fed to every module with true tokens; the first module's states are the target's, the states of each
further one are what the one before it said (DeepSeek-AI 2024, section 2.2). Drafts then grow from what modules say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trtspec.decoding.candidates import candidates
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter, DraftOutput, DraftPlan, DraftRow
from trtspec.decoding.growing import Module, Root, grow
from trtspec.decoding.proposer import Advance, BatchView, Needs, SequenceView, among
from trtspec.decoding.trees import shape_of
from trtspec.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class _Feed:
    """Known tokens of one sequence for a module."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    states: Tensor  # [fed, H]: what each is fed with


@dataclass(frozen=True, slots=True)
class _Said:
    """What a module says of a feed: logits after its last token, and states after its tokens or the last one."""

    logits: Tensor  # [D]
    states: Tensor  # [fed or 1, H]


class StatefulProposer:
    """Drafts chains or trees, as the configuration says."""

    def __init__(self, config: SpeculativeConfig, drafter: Drafter) -> None:
        self._shape = shape_of(config)
        self._min_confidence = config.min_confidence
        self._modules = drafter.modules
        tree = not self._shape.is_chain
        behind = len(self._modules) - 1
        self.needs = Needs(config.draft_nodes, tree=tree, features=drafter.features, caches=True, behind=behind)
        self._positions = min(module.positions for module in self._modules)
        self._roots: list[dict[int, Tensor]] = [{} for _ in self._modules]
        """By module and sequence: the state that the last known token is fed with."""
        self._ends: list[dict[int, Tensor]] = [{} for _ in self._modules]
        """By module and sequence: the state that is said after it."""
        self._tables: dict[int, Sequence[int]] = {}
        """By sequence: the block table under which the modules know it."""

    def propose(self, view: BatchView) -> Draft:
        self._forget(view.released)
        wanting = [row for row in view.rows if row.max_depth and self._reaches(len(row.tokens) + row.max_depth)]
        said = self._read(view.advances, wanting)
        drafting = [row for row in wanting if all(row.sequence_id in roots for roots in self._roots)]
        if not drafting:
            return Draft.empty(len(view.rows))
        first = DraftOutput(
            torch.stack([said[row.sequence_id].logits for row in drafting]),
            torch.stack([said[row.sequence_id].states[-1] for row in drafting]),
        )
        guess = partial(candidates, token_ids=self._modules[0].token_ids, count=self._shape.children)
        draft = grow(self._with_roots(drafting), first, self._shape, guess, self._min_confidence)
        return among(view, drafting, draft)

    def _read(self, advances: Iterable[Advance], wanting: Iterable[SequenceView]) -> Mapping[int, _Said]:
        """Feed every module what was committed. Returns what the first one says, also after roots known before."""
        feeds = self._committed([item for item in advances if self._follows(item)])
        known = self._roots[0].keys() - feeds.keys()
        again = {row.sequence_id: self._root(row) for row in wanting if row.sequence_id in known}
        first = said = self._feed(0, {**feeds, **again})
        for module in range(1, len(self._modules)):
            feeds = self._passed_on(module, feeds, said)
            said = self._feed(module, feeds)
        return first

    def _feed(self, module: int, feeds: Mapping[int, _Feed]) -> Mapping[int, _Said]:
        if not feeds:
            return {}
        scored = [1 if len(self._modules) == 1 else len(feed.tokens) for feed in feeds.values()]
        rows = tuple(
            DraftRow(feed.tokens, feed.start, feed.blocks, places)
            for feed, places in zip(feeds.values(), scored, strict=True)
        )
        states = torch.cat([feed.states for feed in feeds.values()])
        output = self._modules[module].forward(DraftPlan(rows), Draft.empty(len(rows)), states)
        parts = zip(feeds, output.logits.split(scored), output.states.split(scored), strict=True)
        said = {sequence_id: _Said(logits[-1], states) for sequence_id, logits, states in parts}
        self._roots[module] |= {sequence_id: feed.states[-1].clone() for sequence_id, feed in feeds.items()}
        return said

    def _passed_on(self, module: int, feeds: Mapping[int, _Feed], said: Mapping[int, _Said]) -> dict[int, _Feed]:
        """The same tokens for the next module: a position further back, each with what was said one token before.

        At the start of a text, and after a prefix that was found, nothing was said before the first one.
        """
        ends, passed = self._ends[module], {}
        for sequence_id, feed in feeds.items():
            states, before = said[sequence_id].states, ends.get(sequence_id)
            earlier = states[:-1] if before is None else torch.cat([before.unsqueeze(0), states[:-1]])
            lost = len(feed.tokens) - len(earlier)
            ends[sequence_id] = states[-1].clone()
            if len(earlier):
                passed[sequence_id] = _Feed(feed.tokens[lost:], feed.start - 1 + lost, feed.blocks, earlier)
        return passed

    def _committed(self, advances: Sequence[Advance]) -> dict[int, _Feed]:
        """What the first module is fed with: as much as its context holds."""
        feeds: dict[int, _Feed] = {}
        counts = [min(item.count, self._positions - item.start) for item in advances]
        for item, count, states in zip(advances, counts, self._states(advances, counts), strict=True):
            if self._tables.get(item.sequence_id) is not item.blocks:
                self._forget([item.sequence_id])  # the text begins, or is computed again
                self._tables[item.sequence_id] = item.blocks
            begin = item.start + 1
            feeds[item.sequence_id] = _Feed(item.tokens[begin : begin + count], item.start, item.blocks, states)
        return feeds

    def _states(self, advances: Sequence[Advance], counts: Sequence[int]) -> Sequence[Tensor]:
        """[count, H] of each."""
        features = [
            item.features[:count] for item, count in zip(advances, counts, strict=True) if item.features is not None
        ]
        if len(features) < len(advances):
            raise ValueError("the runner tells no features of the target, which this proposer reads")
        return self._modules[0].states(torch.cat(features)).split(list(counts)) if features else ()

    def _root(self, row: SequenceView) -> _Feed:
        """The root alone: what came before it was fed earlier."""
        state = self._roots[0][row.sequence_id].unsqueeze(0)
        return _Feed(row.tokens[-1:], len(row.tokens) - 2, row.blocks, state)

    def _with_roots(self, drafting: Sequence[SequenceView]) -> list[Module]:
        return [
            Module(network, [Root(row, len(row.tokens) - 2 - index, states[row.sequence_id]) for row in drafting])
            for index, (network, states) in enumerate(zip(self._modules, self._roots, strict=True))
        ]

    def _follows(self, advance: Advance) -> bool:
        """The sequence may draft, now or later, or what it leaves may help one that does."""
        return advance.request.drafts and self._reaches(advance.start + 1)

    def _reaches(self, length: int) -> bool:
        return length <= self._positions

    def _forget(self, sequence_ids: Iterable[int]) -> None:
        for sequence_id in sequence_ids:
            self._tables.pop(sequence_id, None)
            for states in (*self._roots, *self._ends):
                states.pop(sequence_id, None)
