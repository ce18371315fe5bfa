"""Six planted mistakes, each of a kind that real implementations made. The law tests must see every one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tests.law.world import (
    VOCABULARY,
    World,
    node_contexts,
    reject,
    rejection_inputs,
    sampled_chain,
    target_ids,
)
from trtspec.decoding.draft import Draft
from trtspec.decoding.rng import Lane, uniforms
from trtspec.decoding.verify import Outcome, walk_tree


def residual_not_normalised(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Outcome:
    """The residual is sampled by inverse transform as if it summed to 1: what is missing falls to the last token."""
    p, accept, noise = rejection_inputs(world, contexts, key, positions, draft)
    right = reject(draft, p, accept, noise)
    assert draft.probs is not None
    every = torch.arange(draft.rows)
    rejected = right.accepted < draft.counts
    q = torch.cat([draft.probs, torch.zeros(draft.rows, 1, VOCABULARY)], dim=1)[every, right.accepted]
    residual = (p[every, right.accepted] - q).clamp(min=0)
    at = positions + right.accepted
    draw = uniforms(key, at, torch.zeros_like(at), torch.ones_like(at), Lane.ACCEPT).unsqueeze(1)
    wrong = (residual.cumsum(dim=1) < draw).sum(dim=1).clamp(max=VOCABULARY - 1)
    return _with_bonus(right, torch.where(rejected, wrong, right.bonus))


def draft_law_at_another_temperature(
    world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft
) -> Outcome:
    """The drafter drew at the request's temperature, but q is taken at temperature 1."""
    places = node_contexts(draft, contexts)[:, :-1]
    untempered = world.drafter[places[..., 0], places[..., 1]].double().softmax(dim=2)
    return reject(replace(draft, probs=untempered), *rejection_inputs(world, contexts, key, positions, draft))


def siblings_without_residual(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Outcome:
    """Each sibling is accepted with its own p, as if those before it had not been tried and rejected."""
    ids = target_ids(world, contexts, key, positions, draft)
    law = world.p[contexts[:, 0], contexts[:, 1]]
    for node in range(3):
        token = draft.tokens[:, node]
        draw = uniforms(key, positions, torch.zeros_like(positions), torch.full_like(positions, node), Lane.ACCEPT)
        taken = draw < law.gather(1, token.unsqueeze(1)).squeeze(1)
        ids[:, 0] = torch.where(taken, token, ids[:, 0])
    return walk_tree(draft, ids)


def bonus_from_the_wrong_row(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Outcome:
    """The bonus is what the target chose one place earlier on the path."""
    ids = target_ids(world, contexts, key, positions, draft)
    right = walk_tree(draft, ids)
    every = torch.arange(draft.rows)
    parent = draft.parents[every, right.path[every, (right.accepted - 1).clamp(min=0)].clamp(min=0)]
    return _with_bonus(right, torch.where(right.accepted > 0, ids[every, parent + 1], right.bonus))


def peeking_confidence_stop(world: World, contexts: Tensor, key: Tensor, positions: Tensor) -> Draft:
    """A drafter that withdraws a token it drew because that token itself looks unlikely."""
    draft = sampled_chain(world, contexts, key, positions)
    assert draft.probs is not None
    sure = draft.probs.gather(2, draft.tokens.unsqueeze(2)).squeeze(2) >= 0.25
    return replace(draft, counts=sure.long().cumprod(dim=1).sum(dim=1))


def path_off_by_one(world: World, contexts: Tensor, key: Tensor, positions: Tensor, draft: Draft) -> Outcome:
    """Below the root, a node is compared with the choice made after the node before it in the list."""
    ids = target_ids(world, contexts, key, positions, draft)
    return walk_tree(draft, torch.cat([ids[:, :1], ids[:, :-1]], dim=1))


def _with_bonus(outcome: Outcome, bonus: Tensor) -> Outcome:
    emitted = outcome.emitted.clone()
    emitted.scatter_(1, outcome.accepted.unsqueeze(1), bonus.unsqueeze(1))
    return outcome._replace(bonus=bonus, emitted=emitted)
