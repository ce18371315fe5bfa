"""What ranks on held-out text are worth: accuracies by depth, tokens per pass of chains and trees, and the best tree.

Ranks are [roots, depths] for each conversation: at every answer token, how many tokens the drafter thinks likelier at
each depth than the one that came, given all before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.speculative import Tree

TOP = (1, 2, 4, 8)
"""Widths for which accuracies are reported."""
_WIDEST = 10
"""Children of a node that a tree may have: deeper ranks are hardly ever right (Cai et al. 2024)."""
_DIGITS = 4


class Accuracy(NamedTuple):
    """Of one depth, where all guesses before it were right."""

    guesses: int
    top: tuple[float, ...]
    """Share of them whose token is among the first k, for each k of `TOP`."""


def accuracies(ranks: Sequence[Tensor]) -> list[Accuracy]:
    """By depth; a depth that nothing reached has no guesses and zeros."""
    found = []
    for alive, column in _alive(torch.cat(list(ranks))):
        reached = column[alive]
        shares = tuple(float((reached < k).float().mean()) if len(reached) else 0.0 for k in TOP)
        found.append(Accuracy(len(reached), shares))
    return found


def _alive(ranks: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """By depth: the roots whose first guesses were all right before it, and its ranks."""
    alive = torch.ones(len(ranks), dtype=torch.bool)
    for column in ranks.unbind(dim=1):
        yield alive, column
        alive = alive & (column == 0)


def tokens_per_pass(ranks: Sequence[Tensor], tree: Tree) -> float:
    """Walk through the conversations as decoding would: each pass takes the longest path that is right, and a bonus.

    1.0 where there is nothing to walk through.
    """
    nodes = frozenset(tree)
    passes = tokens = 0
    for conversation in ranks:
        rows = conversation.tolist()
        root = 0
        while root < len(rows):
            accepted = _accepted(rows[root], nodes)
            passes += 1
            tokens += accepted + 1
            root += accepted + 1
    return tokens / passes if passes else 1.0


def _accepted(row: Sequence[int], nodes: frozenset[tuple[int, ...]]) -> int:
    for depth in range(len(row)):
        if tuple(row[: depth + 1]) not in nodes:
            return depth
    return len(row)


def rounded(value: float) -> float:
    """A measurement as it is written down."""
    return round(value, _DIGITS)


def chain(depth: int) -> Tree:
    """The tree of the first guesses alone."""
    return tuple((0,) * length for length in range(1, depth + 1))


def rank_shares(ranks: Sequence[Tensor]) -> list[list[float]]:
    """By depth and rank, the share of guesses that had it, where the first guesses before were right."""
    joined = torch.cat(list(ranks))
    return [
        [float((column[alive] == rank).float().mean()) if bool(alive.any()) else 0.0 for rank in range(_WIDEST)]
        for alive, column in _alive(joined)
    ]


def best_tree(shares: Sequence[Sequence[float]], nodes: int) -> Tree:
    """The tree of at most so many nodes that accepts most, nodes in the order of their use.

    Shares are chances by depth and rank; ranks at different depths are taken as independent. Greedy search adds the
    node with the largest product each time, which is best because no node is worth more than its parent
    (Cai et al. 2024, Medusa, appendix; ties go to the shallower, then lower ranks).
    """
    first = shares[0] if shares else ()
    heap: list[tuple[float, int, tuple[int, ...]]] = [(-c, 1, (rank,)) for rank, c in enumerate(first) if c]
    heapq.heapify(heap)
    tree: list[tuple[int, ...]] = []
    while heap and len(tree) < nodes:
        negative, depth, path = heapq.heappop(heap)
        tree.append(path)
        if depth < len(shares):
            for rank, chance in enumerate(shares[depth]):
                if chance:
                    heapq.heappush(heap, (negative * chance, depth + 1, (*path, rank)))
    return tuple(tree)
