"""How a draft grows, depth by depth: which guesses become nodes, which nodes are expanded, and which are submitted.

Two shapes. A static tree names its nodes beforehand, as paths of ranks; a chain is the tree of best children. A dynamic
tree keeps all guesses, expands the few whose paths are most probable, and submits the most probable ones of all (Li et
al. 2024, EAGLE-2, sections 4.1 and 4.2). Pure tensor work over all rows at once; knows no network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trtspec.decoding.candidates import Candidates
from trtspec.decoding.draft import ROOT, Draft
from trtspec.decoding.proposer import SequenceView
from trtspec.speculative import SpeculativeConfig, Tree


class Level(NamedTuple):
    """The new nodes of one depth, M a row; indices count in the flattened guesses of the places just expanded."""

    guesses: Tensor  # [B, M]: which guess each node is
    expanded: Tensor  # [B, E]: which of the new nodes are expanded next; the same number in every row
    scores: Tensor  # [B, M]: what is submitted first


class TreeShape(Protocol):
    """A way to grow."""

    @property
    def nodes(self) -> int:
        """Most nodes that are submitted."""
        ...

    @property
    def children(self) -> int:
        """Guesses that are looked at after each expanded place."""
        ...

    @property
    def is_chain(self) -> bool: ...

    def level(self, depth: int, logprobs: Tensor) -> Level | None:
        """Nodes of a depth from 1 on, given the guesses' path log-probabilities [B, E * children]; None beyond."""
        ...


class StaticShape:
    """The same nodes in every row."""

    def __init__(self, tree: Tree) -> None:
        self.nodes = len(tree)
        self.children = 1 + max((path[-1] for path in tree), default=0)
        self.is_chain = all(set(path) == {0} for path in tree)
        self._levels = [_static_level(tree, depth, self.children) for depth in range(1, 1 + max(map(len, tree)))]

    def level(self, depth: int, logprobs: Tensor) -> Level | None:
        if depth > len(self._levels):
            return None
        return Level(*(item.expand(len(logprobs), -1) for item in self._levels[depth - 1]))


class DynamicShape:
    """The nodes that the drafter believes in most."""

    is_chain = False

    def __init__(self, depth: int, width: int, nodes: int) -> None:
        self.nodes = nodes
        self.children = width
        self._widths = _widths(depth, width, nodes)

    def level(self, depth: int, logprobs: Tensor) -> Level | None:
        if depth > len(self._widths):
            return None
        guesses = torch.arange(logprobs.shape[1]).expand(len(logprobs), -1)
        expanded = logprobs.topk(min(self._widths[depth - 1], logprobs.shape[1])).indices
        return Level(guesses, expanded, logprobs)


def _widths(depth: int, width: int, nodes: int) -> list[int]:
    """How many nodes are expanded at each depth, none at the last: all of them lie where those that are submitted
    will, so there are no more of them, and each depth leaves one for every later one."""
    widths: list[int] = []
    for later in range(min(depth, nodes) - 2, -1, -1):
        widths.append(min(width, nodes - sum(widths) - later))
    return [*widths, 0]


def shape_of(config: SpeculativeConfig) -> TreeShape:
    """The shape that a configuration asks for."""
    depth = config.num_speculative_tokens
    if config.dynamic_tree:
        return DynamicShape(depth, config.tree_width, config.max_tree_nodes)
    return StaticShape(config.tree or chain(depth))


def chain(depth: int) -> Tree:
    """The tree of best children."""
    return tuple((0,) * length for length in range(1, depth + 1))


class Growth:
    """The drafts of B rows while they grow; node indices count a row's nodes in the order in which they came."""

    def __init__(self, shape: TreeShape, views: Sequence[SequenceView], min_confidence: float) -> None:
        rows = len(views)
        self._shape = shape
        self._max_depth = torch.tensor([row.max_depth for row in views])
        self._max_nodes = torch.tensor([row.max_nodes for row in views])
        self._least = math.log(min_confidence) if min_confidence > 0 else -math.inf
        self._greedy = torch.tensor([row.request.sampling.greedy for row in views])
        self._laws: list[Tensor] = []  # by depth, [B, V] each: what a chain's tokens were drawn from
        self._depth = 0
        self._places = torch.full((rows, 1), ROOT)
        self.tokens = torch.zeros(rows, 0, dtype=torch.int64)  # [B, n]
        self.parents = torch.zeros(rows, 0, dtype=torch.int64)  # [B, n]
        self.depths: list[int] = []  # [n]
        self._logprobs = torch.zeros(rows, 0)
        self._scores = torch.zeros(rows, 0)
        self.expanded = torch.zeros(rows, 0, dtype=torch.int64)
        """[B, m]: nodes that were expanded or are next, parents first."""
        self.going = torch.ones(rows, dtype=torch.bool)
        """[B]: rows where deeper nodes are still wanted."""

    def add(self, found: Candidates) -> int:
        """Take the guesses after the places expanded last, [B * E, K] row by row, the root's at first.

        Returns how many nodes a row are to be expanded next; they end `expanded`. 0 ends the growth.
        """
        self._depth += 1
        rows, places = self._places.shape
        logprobs = (found.logprobs.view(rows, places, -1) + self._path_logprobs().unsqueeze(2)).flatten(1)
        level = self._shape.level(self._depth, logprobs)
        if level is None:
            return 0
        if found.probs is not None:
            self._laws.append(found.probs)
        wanted = (self._depth <= self._max_depth) & self.going
        first = self.tokens.shape[1]
        self.tokens = torch.cat([self.tokens, found.tokens.view(rows, -1).gather(1, level.guesses)], 1)
        parents = self._places.gather(1, level.guesses // found.tokens.shape[1])
        self.parents = torch.cat([self.parents, parents], 1)
        self.depths += [self._depth] * level.guesses.shape[1]
        believed = torch.where(wanted.unsqueeze(1), logprobs.gather(1, level.guesses), -math.inf)
        self._logprobs = torch.cat([self._logprobs, believed], 1)
        self._scores = torch.cat([self._scores, level.scores], 1)
        return self._expand(first + level.expanded)

    def expanded_draft(self, rows: Tensor) -> Draft:
        """Some rows' expanded nodes as a draft, for a drafter that reads them again."""
        nodes = self.expanded[rows]
        parents = self.parents[rows].gather(1, nodes)
        above = (nodes.unsqueeze(1) == parents.unsqueeze(2)).int().argmax(dim=2)
        counts = torch.full((len(rows),), nodes.shape[1])
        return Draft(self.tokens[rows].gather(1, nodes), torch.where(parents == ROOT, ROOT, above), counts)

    def draft(self) -> Draft:
        """The nodes that are submitted: each row's best within its limits, each after its parent."""
        kept = self._kept()
        width = int(kept.sum(dim=1).max()) if kept.numel() else 0
        order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
        place = kept.long().cumsum(dim=1) - 1
        parents = self.parents.gather(1, order)
        moved = torch.where(parents == ROOT, ROOT, place.gather(1, parents.clamp(min=0)))
        tokens, counts = self.tokens.gather(1, order), kept.sum(dim=1)
        if not self._laws:
            return Draft(tokens, moved, counts)
        return Draft(tokens, moved, counts, torch.stack(self._laws, 1)[:, :width], self._greedy)

    def _kept(self) -> Tensor:
        able = (self._logprobs >= self._least) & self._logprobs.isfinite()
        scores = torch.where(able, self._scores, -math.inf)
        rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return able & (rank < self._max_nodes.clamp(max=self._shape.nodes).unsqueeze(1))

    def _expand(self, nodes: Tensor) -> int:
        """Rows that have no room, depth or confidence for more stop here."""
        self._places = nodes
        size = self.expanded.shape[1] + nodes.shape[1]
        hopes = self._logprobs.gather(1, nodes).amax(dim=1) if nodes.shape[1] else self._logprobs[:, 0]
        self.going = self.going & (self._depth < self._max_depth) & (size <= self._max_nodes)
        self.going = self.going & (hopes >= self._least) & hopes.isfinite()
        self.expanded = torch.cat([self.expanded, nodes], 1)
        return nodes.shape[1] if bool(self.going.any()) else 0

    def _path_logprobs(self) -> Tensor:
        """Of the places expanded last, [B, E]."""
        if self._depth == 1:
            return torch.zeros(self._places.shape)
        return self._logprobs.gather(1, self._places)


def _static_level(tree: Tree, depth: int, children: int) -> Level:
    """One depth of a tree, as a batch of one row."""
    order = {path: index for index, path in enumerate(tree)}
    nodes = [path for path in tree if len(path) == depth]
    places = _inner(tree, depth - 1)
    guesses = [places.index(path[:-1]) * children + path[-1] for path in nodes]
    expanded = [nodes.index(path) for path in _inner(tree, depth)]
    scores = [-float(order[path]) for path in nodes]
    return Level(
        torch.tensor([guesses], dtype=torch.int64),
        torch.tensor([expanded], dtype=torch.int64),
        torch.tensor([scores]),
    )


def _inner(tree: Tree, depth: int) -> list[tuple[int, ...]]:
    """Nodes of a depth that have children, and at depth 0 the root."""
    parents = {path[:-1] for path in tree}
    return [()] if depth == 0 else [path for path in tree if len(path) == depth and path in parents]
