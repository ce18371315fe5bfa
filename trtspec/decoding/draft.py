"""A draft: for every row of a batch a tree of proposed tokens.

Nodes are stored parents first. Node i's parent is node `parents[i]`, or the root where that is -1. A chain is
-1, 0, 1, ...; a row with count 0 decodes plainly. Rows of one batch may differ in everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from trtspec.decoding.sending import send

ROOT = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """Token trees for B rows of at most N nodes; entries beyond a row's count are padding and never read.

    All lie on the CPU but `probs`, which may be large and stay where they were made.
    """

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
        nothing = torch.zeros(rows, 0, dtype=torch.int64)
        return cls(nothing, nothing, torch.zeros(rows, dtype=torch.int64))

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

    def spread(self, places: Sequence[int | None]) -> Draft:
        """A draft of other rows: each is the row named for it, or has no node."""
        index = torch.tensor([0 if place is None else place for place in places], dtype=torch.int64)
        there = torch.tensor([place is not None for place in places])
        return Draft(
            tokens=self.tokens[index],
            parents=self.parents[index],
            counts=self.counts[index] * there,
            probs=None if self.probs is None else self.probs[send(index, self.probs.device)],
            certain=None if self.certain is None else self.certain[index],
        )

    @property
    def rows_certain(self) -> Tensor:
        """[B] bool: which rows were proposed with probability 1."""
        if self.certain is not None:
            return self.certain
        return torch.full((self.rows,), self.probs is None)


def merged(first: Draft, second: Draft, take_first: Tensor) -> Draft:
    """Each row from one of two drafts of the same rows: the first one's where `take_first`, [B] bool, says so."""
    width = max(first.width, second.width)
    pairs = [_pad_nodes(first, width), _pad_nodes(second, width)]
    pick = take_first.unsqueeze(1)
    probs = None
    if first.probs is not None or second.probs is not None:
        known = next(item.probs for item in pairs if item.probs is not None)
        laws = [torch.zeros_like(known) if item.probs is None else item.probs for item in pairs]
        probs = torch.where(send(pick, known.device).unsqueeze(2), laws[0], laws[1])
    return Draft(
        tokens=torch.where(pick, pairs[0].tokens, pairs[1].tokens),
        parents=torch.where(pick, pairs[0].parents, pairs[1].parents),
        counts=torch.where(take_first, first.counts, second.counts),
        probs=probs,
        certain=None if probs is None else torch.where(take_first, first.rows_certain, second.rows_certain),
    )


def _pad_nodes(draft: Draft, width: int) -> Draft:
    """The same draft with room for so many nodes a row."""
    missing = (0, width - draft.width)
    return Draft(
        tokens=pad(draft.tokens, missing),
        parents=pad(draft.parents, missing, value=ROOT),
        counts=draft.counts,
        probs=None if draft.probs is None else pad(draft.probs, (0, 0, *missing)),
        certain=draft.certain,
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
