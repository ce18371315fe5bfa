"""Verification: which drafted tokens stay. Pure functions, randomness an argument; the oracle of every kernel.

Two rules are exact. `walk_tree` accepts a node iff it equals the token that the target chose at its parent; the
randomness is in that choice (`sampling.choose`). `chain_rejection` is the papers' rule for sampled chains: accept
with probability min(1, p/q), else draw from the residual (Leviathan et al. 2023; Chen et al. 2023, Theorem 1).
`typical_acceptance` is not: it keeps what is likely enough, and so changes the law of what is emitted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.decoding.draft import ROOT, Draft, depths

NO_NODE = -1


class Outcome(NamedTuple):
    """What verification decided for each of B rows; padding is -1."""

    path: Tensor  # [B, N] int64: the accepted nodes, root side first
    accepted: Tensor  # [B] int64: length of the path
    emitted: Tensor  # [B, N + 1] int64: the path's tokens, then the bonus
    bonus: Tensor  # [B] int64: the target's own token after the path


class Rejection(NamedTuple):
    """What rejection sampling decided for each of B rows, but for its last draw."""

    path: Tensor  # [B, N] int64: the accepted nodes, root side first, padded with -1
    law: Tensor  # [B, V]: what the token after them is drawn from; need not sum to 1


def walk_tree(draft: Draft, ids: Tensor) -> Outcome:
    """Follow the target's choices down the tree.

    `ids` is [B, N + 1]: column 0 is the token the target chose after the root, column i + 1 after node i. Of two
    siblings with the same token the first counts.
    """
    rows, width = draft.tokens.shape
    if width == 0:  # every pass of plain decoding
        return Outcome(draft.tokens, draft.counts, ids, ids[:, 0])
    real = torch.arange(width) < draft.counts.unsqueeze(1)
    here = torch.full((rows,), NO_NODE)
    walking = torch.ones(rows, dtype=torch.bool)
    path = torch.full((rows, width), NO_NODE)
    for depth in range(width):
        wanted = ids.gather(1, (here + 1).unsqueeze(1))
        matches = real & (draft.parents == here.unsqueeze(1)) & (draft.tokens == wanted)
        walking = walking & matches.any(dim=1)
        if not walking.any():
            break
        here = torch.where(walking, matches.int().argmax(dim=1), here)
        path[:, depth] = torch.where(walking, here, NO_NODE)
    return settle(draft, path, ids.gather(1, (here + 1).unsqueeze(1)).squeeze(1))


def chain_rejection(draft: Draft, target: Tensor, uniforms: Tensor) -> Rejection:
    """Rejection sampling along chains.

    `target` is p, [B, N + 1, V], row i + 1 after node i; `uniforms` is [B, N], one accept draw a node. Rows in
    `draft.certain` were proposed with probability 1. Probabilities are those after all processors, on both sides.
    """
    rows, width = draft.tokens.shape
    q = _draft_law(draft, target)
    p_token = target[:, :width].gather(2, draft.tokens.unsqueeze(2)).squeeze(2)
    q_token = q[:, :width].gather(2, draft.tokens.unsqueeze(2)).squeeze(2)
    real = torch.arange(width) < draft.counts.unsqueeze(1)
    accepted = (real & (uniforms * q_token < p_token)).long().cumprod(dim=1).sum(dim=1)
    every = torch.arange(rows)
    p_here, q_here = target[every, accepted], q[every, accepted]
    q_here = q_here * (accepted < draft.counts).unsqueeze(1)  # after the last node nothing was rejected
    residual = (p_here - q_here).clamp(min=0)
    law = torch.where(residual.sum(dim=1, keepdim=True) > 0, residual, p_here)  # empty only by rounding, where p = q
    steps = torch.arange(width).expand(rows, width)
    return Rejection(torch.where(steps < accepted.unsqueeze(1), steps, NO_NODE), law)


def typical_acceptance(draft: Draft, likelihood: Tensor, entropy: Tensor, threshold: float, alpha: float) -> Tensor:
    """Typical acceptance (Cai et al. 2024, section 2.3.1): the path of accepted nodes, [B, N], padded with -1.

    `likelihood` [B, N] is the target's probability of each node's token, `entropy` [B, N] in nats that of the law it
    is in, both at the node's parent and after all processors. A node is accepted where its parent is and
    likelihood > min(threshold, alpha * exp(-entropy)). The longest path counts; of equally long ones the likeliest.
    """
    rows, width = draft.tokens.shape
    every = torch.arange(rows)
    able = likelihood > (alpha * (-entropy).exp()).clamp(max=threshold)
    able &= torch.arange(width) < draft.counts.unsqueeze(1)
    score = torch.where(able, likelihood.log(), -math.inf)
    for node in range(width):
        parent = draft.parents[:, node]
        score[:, node] += torch.where(parent == ROOT, 0.0, score[every, parent.clamp(min=0)])
    depth = torch.where(score.isfinite(), depths(draft), 0)
    longest = depth.amax(dim=1, keepdim=True)
    here = torch.where(depth == longest, score, -math.inf).argmax(dim=1)
    path = torch.full((rows, width), NO_NODE)
    for level in range(int(longest.max()), 0, -1):
        on_path = longest.squeeze(1) >= level
        path[on_path, level - 1] = here[on_path]
        here = torch.where(on_path, draft.parents[every, here.clamp(min=0)], here)
    return path


def settle(draft: Draft, path: Tensor, bonus: Tensor) -> Outcome:
    """The outcome of a path and the token after it."""
    accepted = (path != NO_NODE).sum(dim=1)
    drafted = draft.tokens.gather(1, path.clamp(min=0))
    emitted = torch.full((draft.rows, draft.width + 1), NO_NODE)
    emitted[:, : draft.width] = torch.where(path == NO_NODE, NO_NODE, drafted)
    emitted.scatter_(1, accepted.unsqueeze(1), bonus.unsqueeze(1))
    return Outcome(path, accepted, emitted, bonus)


def _draft_law(draft: Draft, target: Tensor) -> Tensor:
    """q of each node and a row of zeros after the last, [B, N + 1, V]."""
    certain = draft.rows_certain
    q = torch.zeros_like(target)
    if draft.probs is not None:
        q[:, : draft.width] = draft.probs
    q[certain, : draft.width] = torch.nn.functional.one_hot(draft.tokens[certain], target.shape[2]).to(q.dtype)
    return q
