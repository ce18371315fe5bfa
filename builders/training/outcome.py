"""What a run leaves: the folder of a drafter, with a card of what it learnt from and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builders.drafts import native
from builders.drafts.card import Card
from builders.training import curves
from builders.training.measure import TOP, accuracies, best_tree, chain, rank_shares, rounded, tokens_per_pass
from builders.training.recipe import Training
from trtspec.executors.embedded.drafter_config import DrafterConfig
from trtspec.executors.embedded.drafter_weights import TOKEN_IDS
from trtspec.executors.embedded.weights import SCALES, Int8Weight
from trtspec.speculative import MAX_TREE_NODES, Tree
from trtspec.types import Method

_CHAINS = (1, 2, 3, 4, 6, 8)
_TREES = (3, 8, 16, 32, MAX_TREE_NODES)
_TREE_WIDTH = 4
"""Nodes that a growing tree expands at each depth, where its size leaves that many."""
_WORTH_A_STEP = 0.02
"""Tokens per pass that pay for one more step of a drafter."""


def write_drafter(
    directory: Path,
    config: DrafterConfig,
    tensors: dict[str, Tensor],
    token_ids: Tensor,
    card: Card,
    history: Sequence[dict[str, Any]],
) -> bool:
    """Write the folder; false where the picture is missing because matplotlib is not installed."""
    native.write(directory, config, {**stored_tensors(tensors), TOKEN_IDS: token_ids.cpu()}, card)
    return curves.draw(history, f"{card.method.value} for {card.target_name}", directory / curves.NAME)


def stored_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As bfloat16; matrices as 8-bit integers with scales. Drafts only guess, and reading weights is what they cost."""
    stored: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() == 2:
            packed = Int8Weight.of(value.cpu())
            stored[name], stored[name + SCALES] = packed.values, packed.scales
        else:
            stored[name] = value.to("cpu", torch.bfloat16).contiguous()
    return stored


def suited(training: Training, ranks: Sequence[Tensor], nodes: int) -> dict[str, Any]:
    """The settings of at most so many nodes that the ranks speak for.

    Medusa gets the best tree, a draft model chains, which any acceptance rule takes, and the others trees that grow
    where they are most certain.
    """
    if training.method is Method.MEDUSA:
        tree = best_tree(rank_shares(ranks), nodes)
        return {"num_speculative_tokens": max(map(len, tree), default=1), "tree": [list(path) for path in tree]}
    depth = {"num_speculative_tokens": min(_useful_depth(ranks), nodes)}
    if training.method is Method.DRAFT_MODEL:
        return depth
    return {**depth, "dynamic_tree": True, "max_tree_nodes": nodes, "tree_width": min(nodes, _TREE_WIDTH)}


def _useful_depth(ranks: Sequence[Tensor]) -> int:
    """The deepest that still adds something to a chain."""
    worth = [tokens_per_pass(ranks, chain(depth)) for depth in range(ranks[0].shape[1] + 1)]
    return max((depth for depth in range(1, len(worth)) if worth[depth] - worth[depth - 1] >= _WORTH_A_STEP), default=1)


def measured(ranks: Sequence[Tensor], chosen_by: Sequence[Tensor]) -> dict[str, Any]:
    """Accuracies and tokens per pass on held-out text, as the card has them; trees are chosen by other text."""
    found = accuracies(ranks)
    shares, deepest = rank_shares(chosen_by), len(found)
    return {
        "held-out conversations": len(ranks),
        "held-out tokens": sum(len(item) for item in ranks),
        **{
            f"depth {d + 1}: top " + ", ".join(map(str, TOP)): list(map(rounded, item.top))
            for d, item in enumerate(found)
        },
        "tokens per pass, chains": {str(d): _worth(ranks, chain(d)) for d in _CHAINS if d <= deepest},
        "tokens per pass, trees": {str(n): _worth(ranks, best_tree(shares, n)) for n in _TREES},
    }


def _worth(ranks: Sequence[Tensor], tree: Tree) -> float:
    return rounded(tokens_per_pass(ranks, tree))
