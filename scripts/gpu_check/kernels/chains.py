"""Batches of chains for rejection sampling, and which of their decisions rounding could turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from plugins import eager_verification, launch_verification
from plugins.eager_verification import ChainOutcome, law
from trtspec.decoding.rng import Lane, gumbel, seed_words, uniforms

MARGIN = 2e-5
"""Relative error that float32 statistics may give a probability: sums of a vocabulary, and exponentials of scores some
tens below the largest. Scores in half precision are exact in float32, and so add nothing to it."""


class Chains(NamedTuple):
    """The arguments of `chain_rejection`, in order."""

    target: Tensor
    draft: Tensor
    tokens: Tensor
    counts: Tensor
    certain: Tensor
    uniforms: Tensor
    seeds: Tensor
    positions: Tensor
    choices: Tensor
    vocabulary: int

    def on(self, device: torch.device) -> Chains:
        return Chains(*(item.to(device) if isinstance(item, Tensor) else item for item in self))  # type: ignore[arg-type]

    def launched(self) -> ChainOutcome:
        return launch_verification.chain_rejection(*self)

    def eager(self) -> ChainOutcome:
        return eager_verification.chain_rejection(*self)


@dataclass(frozen=True)
class Shape:
    rows: int
    nodes: int
    vocabulary: int
    padding: int = 0
    """Columns beyond the vocabulary."""


def random_chains(shape: Shape, seed: int, dtype: torch.dtype = torch.float32) -> Chains:
    """Rows that differ in everything, a tenth of the scores at -inf; whatever must not be read is NaN or no token."""
    draw = torch.Generator().manual_seed(seed)
    rows, nodes, columns = shape.rows, shape.nodes, shape.vocabulary + shape.padding
    target = 2 * torch.randn(rows, nodes + 1, columns, generator=draw)
    draft = target[:, :nodes] + torch.randn(rows, nodes, columns, generator=draw)
    for scores in (target, draft):
        gone = torch.rand(scores.shape, generator=draw) < 0.1
        gone[..., 0] = False
        scores[gone] = -torch.inf
        scores[..., shape.vocabulary :] = torch.nan
    target, draft = target.to(dtype), draft.to(dtype)
    counts = torch.randint(0, nodes + 1, (rows,), generator=draw)
    certain = torch.rand(rows, generator=draw) < 0.3
    probs = draft[..., : shape.vocabulary].float().softmax(dim=2).flatten(end_dim=1)
    tokens = torch.multinomial(probs, 1, generator=draw).reshape(rows, nodes) if rows * nodes else torch.zeros(rows, 0)
    beyond = torch.arange(nodes) >= counts.unsqueeze(1)
    draft[beyond | certain.unsqueeze(1)] = torch.nan
    target[:, 1:][beyond] = torch.nan
    tokens[beyond] = -7
    return Chains(
        *(target, draft, tokens.int(), counts.int(), certain.int()),
        torch.rand(rows, nodes, generator=draw),
        torch.randint(-(2**63), 2**63 - 1, (rows,), generator=draw),
        torch.randint(0, 2**17, (rows,), generator=draw).int(),
        torch.randint(0, 3, (rows,), generator=draw).int(),
        shape.vocabulary,
    )


def clear(chains: Chains) -> Tensor:
    """[B] bool: rows whose decisions all stay the same when each probability is off by MARGIN of itself."""
    tokens, q = _drafted(chains)
    p = law(chains.target[..., : chains.vocabulary])
    real = torch.arange(tokens.shape[1]) < chains.counts.unsqueeze(1)
    at = tokens.unsqueeze(2)
    p_token, q_token = p[:, :-1].gather(2, at).squeeze(2), q[:, :-1].gather(2, at).squeeze(2)
    bar = chains.uniforms * q_token
    near = real & ((p_token - bar).abs() <= MARGIN * torch.maximum(p_token, bar)) & (p_token > 0)
    return ~near.any(dim=1) & _clearly_drawn(chains, p, q)


def _clearly_drawn(chains: Chains, p: Tensor, q: Tensor) -> Tensor:
    outcome = chains.eager()
    end = outcome.accepted.long()
    every = torch.arange(len(end))
    p, q = p[every, end], q[every, end] * (end < chains.counts).unsqueeze(1)
    left, error = (p - q).clamp(min=0), MARGIN * (p + q)
    tokens = torch.arange(chains.vocabulary).expand_as(p)
    positions, choices = (chains.positions + end).unsqueeze(1), chains.choices.unsqueeze(1)
    noise = gumbel(seed_words(chains.seeds.tolist()).unsqueeze(2), positions.long(), choices.long(), tokens)
    high = (left + error).log() + noise
    winner = outcome.token.long().clamp(min=0).unsqueeze(1)
    low = ((left - error).clamp(min=0).log() + noise).gather(1, winner).squeeze(1)
    others = high.scatter(1, winner, -torch.inf).amax(dim=1)
    return (low > others) | (outcome.token < 0)


def _drafted(chains: Chains) -> tuple[Tensor, Tensor]:
    """Tokens, 0 for padding, and q with a row of zeros after the last node."""
    tokens = chains.tokens.long().clamp(min=0)
    q = law(chains.draft[..., : chains.vocabulary])
    sure = chains.certain.bool()
    q[sure] = one_hot(tokens[sure], chains.vocabulary).double()
    return tokens, torch.cat([q, torch.zeros(len(q), 1, chains.vocabulary, dtype=torch.float64)], dim=1)


def drawn_chains(target: Tensor, draft: Tensor, rows: int, certain: bool = False) -> Chains:
    """Many rows of one law a place, [N + 1, V] and [N, V] scores, that differ in their seed; drafts are drawn in their
    lane, or the likeliest tokens are taken for certain."""
    nodes, vocabulary = draft.shape
    seeds = torch.arange(rows)
    key = seed_words(seeds.tolist()).unsqueeze(2)
    positions = torch.full((rows, 1), 5) + torch.arange(nodes)
    zeros = torch.zeros_like(positions)
    token = torch.arange(vocabulary).expand(rows, nodes, vocabulary)
    noise = gumbel(
        key.unsqueeze(3), positions.unsqueeze(2).expand_as(token), torch.zeros_like(token), token, Lane.DRAFT
    )
    best = draft if certain else draft + noise
    return Chains(
        *(target.expand(rows, -1, -1).contiguous(), draft.expand(rows, -1, -1).contiguous()),
        best.expand(rows, -1, -1).argmax(dim=2).int(),
        torch.full((rows,), nodes, dtype=torch.int32),
        torch.full((rows,), int(certain), dtype=torch.int32),
        uniforms(key, positions, zeros, zeros, Lane.ACCEPT).float(),
        seeds,
        torch.full((rows,), 5, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int32),
        vocabulary,
    )
