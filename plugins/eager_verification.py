"""The eager twins of the kernels that verify drafts: their names and arguments over the oracle, in plain PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.decoding import verify
from trtspec.decoding.draft import Draft
from trtspec.decoding.sampling import ChoiceRows, choose
from trtspec.decoding.verify import Outcome
from trtspec.types import SamplingParams

_LARGEST_DRAW = 1.0 - 2.0**-25
"""Of `rng.uniforms`, which float32 rounds to 1."""


class ChainOutcome(NamedTuple):
    """What rejection sampling decided for each of B chains, int32."""

    accepted: Tensor  # [B]: how many nodes stay
    token: Tensor  # [B]: the token after them; -1 where the target has no law there


def walk_tree(ids: Tensor, tokens: Tensor, parents: Tensor, counts: Tensor) -> Outcome:
    """Follow the target's choices, [B, N + 1], down trees of [B, N] nodes; all int32, as the outcome is."""
    draft = Draft(tokens.long(), parents.long(), counts.long())
    return Outcome(*(column.int() for column in verify.walk_tree(draft, ids.long())))


def chain_rejection(
    target: Tensor,  # [B, N + 1, W]: processed logits divided by temperature, of V tokens; row i + 1 after node i
    draft: Tensor,  # [B, N, W]: of what each node was drawn from
    tokens: Tensor,  # [B, N] int32
    counts: Tensor,  # [B] int32
    certain: Tensor,  # [B] int32: 1 where a row was proposed with probability 1
    uniforms: Tensor,  # [B, N] float32: an accept draw a node, of lane ACCEPT
    seeds: Tensor,  # [B] int64
    positions: Tensor,  # [B] int32: index in the sequence of the first node's token
    choices: Tensor,  # [B] int32: which of a request's n outputs
    vocabulary: int,
) -> ChainOutcome:
    """The papers' rule: how far each chain stays, and the token that follows, drawn with noise of lane TARGET.

    What is beyond a count, scores of both sides included, may be anything.
    """
    rows, width = tokens.shape
    drafted = tokens.long() * (torch.arange(width) < counts.unsqueeze(1))  # padding may be anything
    chains = Draft(
        drafted,
        torch.arange(-1, width - 1).expand(rows, width),
        counts.long(),
        law(draft[..., :vocabulary]),
        certain.bool(),
    )
    path, left = verify.chain_rejection(
        chains, law(target[..., :vocabulary]), uniforms.double().clamp(max=_LARGEST_DRAW)
    )
    accepted = (path != verify.NO_NODE).sum(dim=1)
    as_it_is = [SamplingParams(temperature=1.0)] * rows
    places = (positions + accepted).tolist()
    token = choose(left.log(), ChoiceRows(as_it_is, seeds.tolist(), places, choices.tolist()))
    return ChainOutcome(accepted.int(), token.int())


def law(scores: Tensor) -> Tensor:
    """What scores say, float64; zero everywhere where the best is NaN or infinite."""
    scores = scores.double()
    known = scores.amax(dim=-1, keepdim=True).isfinite()  # NaN is the largest
    return torch.where(known, scores.softmax(dim=-1), 0.0)
