"""The shapes of drafts: at each depth, which guesses become nodes, which are expanded, and which are submitted first.

A static tree names its nodes beforehand, as paths of ranks; a chain is the tree of best children. A dynamic tree keeps
all guesses, expands the few whose paths are most probable, and submits the most probable ones of all (Li et al. 2024,
EAGLE-2, sections 4.1 and 4.2).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trtspec.speculative import SpeculativeConfig, Tree

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Level(NamedTuple):
    """The new nodes of one depth, M a row; indices count in the flattened guesses of the places just expanded.

    Where all rows have the same ones, there is one row, or one for each.
    """

    guesses: Ints  # [B or 1, M]: which guess each node is
    expanded: Ints  # [B or 1, E]: which of the new nodes are expanded next
    scores: Floats  # [B or 1, M]: what is submitted first; no node has a higher one than its parent


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

    @property
    def expands_chain(self) -> bool:
        """Each place that is expanded follows the one before."""
        ...

    def level(self, depth: int, logprobs: Floats) -> Level | None:
        """Nodes of a depth from 1 on, given the guesses' path log-probabilities [B, E * children]; None beyond."""
        ...


class StaticShape:
    """The same nodes in every row."""

    def __init__(self, tree: Tree) -> None:
        self.nodes = len(tree)
        self.children = 1 + max((path[-1] for path in tree), default=0)
        self.is_chain = all(set(path) == {0} for path in tree)
        inner = sorted({path[:-1] for path in tree}, key=len)
        self.expands_chain = all(path[:-1] == above for above, path in pairwise(inner))
        self._levels = [_static_level(tree, depth, self.children) for depth in range(1, 1 + max(map(len, tree)))]

    def level(self, depth: int, logprobs: Floats) -> Level | None:
        return self._levels[depth - 1] if depth <= len(self._levels) else None


class DynamicShape:
    """The nodes that the drafter believes in most."""

    is_chain = False

    def __init__(self, depth: int, width: int, nodes: int) -> None:
        self.nodes = nodes
        self.children = width
        self._widths = _widths(depth, width, nodes)
        self.expands_chain = max(self._widths) <= 1

    def level(self, depth: int, logprobs: Floats) -> Level | None:
        if depth > len(self._widths):
            return None
        best = (-logprobs).argsort(axis=1, kind="stable")
        return Level(np.arange(logprobs.shape[1])[np.newaxis], best[:, : self._widths[depth - 1]], logprobs)


def _widths(depth: int, width: int, nodes: int) -> list[int]:
    """How many nodes are expanded at each depth, none at the last: an equal share of those that can be submitted.
    More would be asked of the drafter at the cost of depth, and few of their children chosen."""
    deep = min(depth, nodes)
    return [min(width, nodes // deep)] * (deep - 1) + [0]


def shape_of(config: SpeculativeConfig) -> TreeShape:
    """The shape that a configuration asks for."""
    depth = config.num_speculative_tokens
    if config.dynamic_tree:
        return DynamicShape(depth, config.tree_width, config.max_tree_nodes)
    return StaticShape(config.tree or chain(depth))


def chain(depth: int) -> Tree:
    """The tree of best children."""
    return tuple((0,) * length for length in range(1, depth + 1))


def _static_level(tree: Tree, depth: int, children: int) -> Level:
    """One depth of a tree, as a batch of one row."""
    order = {path: index for index, path in enumerate(tree)}
    nodes = [path for path in tree if len(path) == depth]
    places = _inner(tree, depth - 1)
    guesses = [places.index(path[:-1]) * children + path[-1] for path in nodes]
    expanded = [nodes.index(path) for path in _inner(tree, depth)]
    scores = [-float(order[path]) for path in nodes]
    return Level(np.array([guesses], np.int64), np.array([expanded], np.int64), np.array([scores], np.float32))


def _inner(tree: Tree, depth: int) -> list[tuple[int, ...]]:
    """Nodes of a depth that have children, and at depth 0 the root."""
    parents = {path[:-1] for path in tree}
    return [()] if depth == 0 else [path for path in tree if len(path) == depth and path in parents]
