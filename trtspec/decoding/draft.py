"""A draft: for every row of a batch a tree of proposed tokens.

Nodes are stored parents first. Node i's parent is node `parents[i]`, or the root where that is -1. A chain is
-1, 0, 1, ...; a row with count 0 decodes plainly. Rows of one batch may differ in everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROOT = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """Token trees for B rows of at most N nodes; entries beyond a row's count are padding and never read."""

    tokens: Tensor  # [B, N] int64
    parents: Tensor  # [B, N] int64, ROOT or an earlier node
    counts: Tensor  # [B] int64
    probs: Tensor | None = None  # [B, N, V], the law each node was drawn from, where drafts are sampled
    certain: Tensor | None = None  # [B] bool: rows proposed with probability 1; None: all without `probs`, else none

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def width(self) -> int:
        """N, the most nodes a row may have."""
        return self.tokens.shape[1]

    @classmethod
    def empty(cls, rows: int) -> Draft:
        """Nothing proposed for any row."""
        return cls.chains([()] * rows)

    @classmethod
    def chains(cls, rows: Sequence[Sequence[int]]) -> Draft:
        """One chain of certain proposals a row."""
        return cls.trees([(row, range(ROOT, len(row) - 1)) for row in rows])

    @classmethod
    def trees(cls, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Draft:
        """One tree of certain proposals a row, given as (tokens, parents)."""
        width = max((len(tokens) for tokens, _ in rows), default=0)
        return cls(
            tokens=_padded([tokens for tokens, _ in rows], width, 0),
            parents=_padded([parents for _, parents in rows], width, ROOT),
            counts=torch.tensor([len(tokens) for tokens, _ in rows], dtype=torch.int64),
        )


def depths(draft: Draft) -> Tensor:
    """Depth of each node, [B, N]; children of the root have depth 1."""
    result = torch.ones_like(draft.parents)
    for node in range(draft.width):
        parent = draft.parents[:, node]
        above = result.gather(1, parent.clamp(min=0).unsqueeze(1)).squeeze(1)
        result[:, node] = torch.where(parent == ROOT, 1, above + 1)
    return result


def ancestors(draft: Draft) -> Tensor:
    """Which nodes each node sees, [B, N, N] bool: itself and the nodes on its way to the root."""
    rows, width = draft.parents.shape
    seen = torch.zeros(rows, width, width, dtype=torch.bool)
    every = torch.arange(rows)
    for node in range(width):
        parent = draft.parents[:, node]
        inherited = seen[every, parent.clamp(min=0)] & (parent != ROOT).unsqueeze(1)
        seen[:, node] = inherited
        seen[:, node, node] = True
    return seen


def place_depths(parents: Sequence[int]) -> list[int]:
    """Depth of one row's root, 0, and of each of its nodes, [N + 1]."""
    deep = [0]
    for parent in parents:
        deep.append(deep[parent + 1] + 1)
    return deep


def nodes_by_depth(parents: Sequence[int]) -> tuple[int, ...]:
    """How many nodes one row submits at each depth; element i is depth i + 1."""
    deep = place_depths(parents)
    return tuple(deep.count(level) for level in range(1, max(deep) + 1))


def _padded(rows: Sequence[Sequence[int]], width: int, fill: int) -> Tensor:
    lists = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(lists, dtype=torch.int64).reshape(len(rows), width)
