"""Drafts while they grow, depth by depth: from guesses to nodes, by a shape and each row's limits.

Index work over all rows at once, on arrays of NumPy: there are few of them, and they are small. Knows no network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.candidates import Candidates
from trtspec.decoding.draft import ROOT, Draft
from trtspec.decoding.proposer import SequenceView
from trtspec.decoding.trees import Ints, TreeShape

Bools = NDArray[np.bool_]
_NEVER = np.float32(-math.inf)


class Growth:
    """The drafts of B rows while they grow; node indices count a row's nodes in the order in which they came."""

    def __init__(self, shape: TreeShape, views: Sequence[SequenceView], min_confidence: float) -> None:
        rows = len(views)
        self._shape = shape
        self._max_depth = np.array([row.max_depth for row in views])
        self._max_nodes = np.array([row.max_nodes for row in views])
        self._least = math.log(min_confidence) if min_confidence > 0 else -math.inf
        self._greedy = [row.request.sampling.greedy for row in views]
        self._laws: list[Tensor] = []  # by depth, [B, V] each: what a chain's tokens were drawn from
        self._every = np.arange(rows)[:, np.newaxis]
        self.depth = 0
        """Of the deepest nodes."""
        self._places = np.full((rows, 1), ROOT)
        self._reached = np.zeros((rows, 1), np.float32)  # [B, E]: path log-probabilities of the places
        self.tokens = np.zeros((rows, 0), np.int64)  # [B, n]
        self.parents = np.zeros((rows, 0), np.int64)  # [B, n]
        self._logprobs = np.zeros((rows, 0), np.float32)  # [B, n]: of paths; -inf where a node is not wanted
        self._scores = np.zeros((rows, 0), np.float32)
        self.expanded = np.zeros((rows, 0), np.int64)
        """[B, m]: nodes that were expanded or are next, parents first."""
        self.going = np.ones(rows, np.bool_)
        """[B]: rows where deeper nodes are still wanted."""

    @property
    def places(self) -> int:
        """How many places of each row are expanded next."""
        return self._places.shape[1]

    def paths(self, row: int) -> list[tuple[int, ...]]:
        """Of these places the tokens from the root to each."""
        return [self._path(row, int(node)) for node in self._places[row]]

    def _path(self, row: int, node: int) -> tuple[int, ...]:
        if node == ROOT:
            return ()
        return (*self._path(row, int(self.parents[row, node])), int(self.tokens[row, node]))

    def add(self, found: Candidates) -> int:
        """Take the guesses after the places expanded last, [B * E, K] row by row, the root's at first.

        Returns how many nodes a row are to be expanded next; they end `expanded`. 0 ends the growth.
        """
        self.depth += 1
        rows, places = self._places.shape
        children = found.tokens.shape[1]
        guessed = found.logprobs.numpy().reshape(rows, places, children)
        logprobs = (guessed + self._reached[:, :, np.newaxis]).reshape(rows, -1)
        level = self._shape.level(self.depth, logprobs)
        if level is None:
            return 0
        if found.probs is not None:
            self._laws.append(found.probs)
        wanted = (self.depth <= self._max_depth) & self.going
        first = self.tokens.shape[1]
        tokens = found.tokens.numpy().reshape(rows, -1)[self._every, level.guesses]
        self.tokens = np.concatenate([self.tokens, tokens], 1)
        self.parents = np.concatenate([self.parents, self._places[self._every, level.guesses // children]], 1)
        believed = np.where(wanted[:, np.newaxis], logprobs[self._every, level.guesses], _NEVER)
        self._logprobs = np.concatenate([self._logprobs, believed], 1)
        self._scores = np.concatenate([self._scores, np.broadcast_to(level.scores, believed.shape)], 1)
        return self._expand(np.broadcast_to(first + level.expanded, (rows, level.expanded.shape[1])))

    def expanded_draft(self, rows: Ints) -> Draft:
        """Some rows' expanded nodes as a draft, for a drafter that reads them again."""
        nodes, every = self.expanded[rows], rows[:, np.newaxis]
        parents = self.parents[every, nodes]
        above = (nodes[:, np.newaxis] == parents[:, :, np.newaxis]).argmax(axis=2)
        counts = np.full(len(rows), nodes.shape[1])
        return _draft(self.tokens[every, nodes], np.where(parents == ROOT, ROOT, above), counts)

    def draft(self) -> Draft:
        """The nodes that are submitted: each row's best within its limits, each after its parent."""
        kept = self._kept()
        counts = kept.sum(axis=1)
        order = (~kept).argsort(axis=1, kind="stable")[:, : counts.max(initial=0)]
        parents = self.parents[self._every, order]
        moved = np.where(parents == ROOT, ROOT, (kept.cumsum(axis=1) - 1)[self._every, parents])
        tokens = self.tokens[self._every, order]
        if not self._laws:
            return _draft(tokens, moved, counts)
        laws = torch.stack(self._laws, 1)[:, : order.shape[1]]
        return _draft(tokens, moved, counts, laws, torch.tensor(self._greedy))

    def _kept(self, others: int = 0) -> Bools:
        """[B, n]: the nodes that would be submitted if the growth ended here and so many others came before them."""
        able = (self._logprobs >= self._least) & np.isfinite(self._logprobs)
        scores = np.where(able, self._scores, _NEVER)
        rank = (-scores).argsort(axis=1, kind="stable").argsort(axis=1)
        kept: Bools = able & (rank + others < np.minimum(self._max_nodes, self._shape.nodes)[:, np.newaxis])
        return kept

    def _expand(self, nodes: Ints) -> int:
        """Rows that have no room or depth for more stop here, and those where nothing below would be submitted."""
        self._places, self._reached = nodes, self._logprobs[self._every, nodes]
        self.expanded = np.concatenate([self.expanded, nodes], 1)
        if not nodes.shape[1]:
            return 0
        fits = (self.depth < self._max_depth) & (self.expanded.shape[1] <= self._max_nodes)
        # What is below a node comes after it. So it needs one place more than the node among the best known now.
        self.going = self.going & fits & self._kept(others=1)[self._every, nodes].any(axis=1)
        return nodes.shape[1] if self.going.any() else 0


def _draft(
    tokens: Ints, parents: Ints, counts: Ints, probs: Tensor | None = None, certain: Tensor | None = None
) -> Draft:
    return Draft(torch.from_numpy(tokens), torch.from_numpy(parents), torch.from_numpy(counts), probs, certain)
