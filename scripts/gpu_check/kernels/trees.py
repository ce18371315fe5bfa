"""Random drafts of chains and trees, and choices of a target that agrees with them for a while."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.decoding.draft import ROOT, Draft

_VOCABULARY = 4
_AGREES = 0.8
"""How often the target chooses what some child holds."""


class Trees(NamedTuple):
    """The arguments of `walk_tree`, in order."""

    ids: Tensor
    tokens: Tensor
    parents: Tensor
    counts: Tensor

    def on(self, device: torch.device) -> Trees:
        return Trees(*(item.to(device) for item in self))


def random_trees(rows: int, most: int, seed: int) -> Trees:
    """Rows of 0 to `most` nodes: a third chains, one empty and one as large as may be among them."""
    draw = random.Random(seed)
    sizes = [most, 0, *(draw.randint(0, most) for _ in range(rows))][:rows]
    trees = [_tree(size, row % 3 == 0, draw) for row, size in enumerate(sizes)]
    draft = Draft.trees(trees)
    ids = [_choices(tokens, parents, draft.tokens.shape[1], draw) for tokens, parents in trees]
    arrays = (torch.tensor(ids), draft.tokens, draft.parents, draft.counts)
    return Trees(*(item.int() for item in arrays))


def _tree(size: int, chain: bool, draw: random.Random) -> tuple[list[int], list[int]]:
    tokens = [draw.randrange(_VOCABULARY) for _ in range(size)]
    return tokens, [node - 1 if chain else draw.randint(ROOT, node - 1) for node in range(size)]


def _choices(tokens: list[int], parents: list[int], width: int, draw: random.Random) -> list[int]:
    """One after the root and after each of so many nodes, beyond the tree's own, too."""
    children: dict[int, list[int]] = {}
    for token, parent in zip(tokens, parents, strict=True):
        children.setdefault(parent, []).append(token)
    after = (children.get(place) for place in range(ROOT, width))
    return [draw.choice(known) if known and draw.random() < _AGREES else draw.randrange(_VOCABULARY) for known in after]
