"""What a drafter thinks comes next: the few tokens at each place that the target will most likely choose.

A sampled request's target adds noise to its scores, and the noise is known before it chooses. So the drafter adds the
same noise to its own: it guesses this very draw and not the law (the coupling of design: Gumbel-max over shared noise).
Whatever is guessed, the exact rule lets the target's choice stand. Rejection sampling needs drafts that are drawn
instead, and their law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from trtspec.decoding.drawing import draw
from trtspec.decoding.rng import gumbel, seed_words
from trtspec.decoding.sampling import ChoiceRows
from trtspec.types import SamplingParams

_NEAR = 64
"""Tokens of a sampled place that noise can lift: more cost more than they win."""


class Candidates(NamedTuple):
    """Guesses at S places, best first."""

    tokens: Tensor  # [S, K] int64, the target's ids
    logprobs: Tensor  # [S, K] float32: how likely each is thought to be accepted; -inf where there is no guess
    probs: Tensor | None = None  # [S, V]: the law that a single guess was drawn from, where it was made


def drawn(logits: Tensor, rows: ChoiceRows, token_ids: Tensor | None, vocabulary: int) -> Candidates:
    """One token of each place drawn from the drafter's own law, for rejection sampling.

    How likely it is thought to be is told by the law alone: a draft must not end because of which token was drawn.
    """
    found, probs = draw(logits, rows, token_ids, vocabulary)
    tokens, hope = found.cpu(), probs.amax(dim=1).log().cpu()
    hope[[row for row, params in enumerate(rows.sampling) if params.greedy]] = 0.0
    logprobs = torch.where((tokens >= 0) & hope.isfinite(), hope, -math.inf)
    return Candidates(tokens.clamp(min=0).unsqueeze(1), logprobs.unsqueeze(1), probs)


def candidates(logits: Tensor, rows: ChoiceRows, token_ids: Tensor | None, count: int) -> Candidates:
    """The best `count` tokens of each place, from [S, D] logits of a drafter whose ids `token_ids` translates.

    Places whose logits are not numbers have no guess. Of the rows' settings those count that cut tokens off or make
    them equal: temperature, top-k, top-p, min-p, and guides; penalties and biases do not.
    """
    logits = _guided(logits.float(), rows, token_ids)
    sampled = [row for row, params in enumerate(rows.sampling) if not params.greedy]
    width = min(max(count, _NEAR if sampled else 0), logits.shape[1])
    values, places = logits.log_softmax(dim=1).topk(width)
    tokens, logprobs = (places if token_ids is None else token_ids[places]).cpu(), values.cpu()
    if sampled:
        noisy = _noisy(logprobs[sampled], tokens[sampled], rows, sampled).log_softmax(dim=1)
        logprobs[sampled], order = noisy.sort(dim=1, descending=True, stable=True)
        tokens[sampled] = tokens[sampled].gather(1, order)
    logprobs.masked_fill_(~logprobs.isfinite(), -math.inf)
    missing = count - width
    if missing > 0:
        return Candidates(pad(tokens, (0, missing)), pad(logprobs, (0, missing), value=-math.inf))
    return Candidates(tokens[:, :count], logprobs[:, :count])


def _guided(logits: Tensor, rows: ChoiceRows, token_ids: Tensor | None) -> Tensor:
    """Logits with those at -inf that a place's guide does not allow; a copy where any place has one."""
    if not any(rows.edits):
        return logits
    logits = logits.clone()
    for scores, edits in zip(logits, rows.edits, strict=True):
        if edits is not None and edits.allowed is not None:
            width = min(len(scores), len(edits.allowed))
            allowed = edits.allowed[:width] if token_ids is None else edits.allowed[token_ids]
            scores[: len(allowed)].masked_fill_(~allowed, -math.inf)
            scores[len(allowed) :] = -math.inf
    return logits


def _noisy(values: Tensor, tokens: Tensor, rows: ChoiceRows, sampled: Sequence[int]) -> Tensor:
    """Tempered scores, those that truncation cuts at -inf, with the target's noise at their places."""
    sampling = [rows.sampling[row] for row in sampled]
    scores = values / torch.tensor([params.temperature for params in sampling]).unsqueeze(1)
    count = values.shape[1]
    seeds = seed_words([rows.seeds[row] for row in sampled], values.device).repeat_interleave(count, dim=1)
    positions = torch.tensor([rows.positions[row] for row in sampled]).repeat_interleave(count)
    choices = torch.tensor([rows.choices[row] for row in sampled]).repeat_interleave(count)
    noise = gumbel(seeds, positions, choices, tokens.flatten()).view_as(scores).float()
    return torch.where(_kept(scores, sampling), scores + noise, -math.inf)


def _kept(scores: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Which of the best scores, best first, truncation leaves, seen from these alone: top-k before the others."""
    top_k = torch.tensor([params.top_k or scores.shape[1] for params in sampling]).unsqueeze(1)
    top_p = torch.tensor([params.top_p for params in sampling]).unsqueeze(1)
    min_p = torch.tensor([params.min_p for params in sampling]).unsqueeze(1)
    first = torch.arange(scores.shape[1]) < top_k
    weights = scores.masked_fill(~first, -math.inf).softmax(dim=1)
    before = weights.cumsum(dim=1) - weights
    return first & (before < top_p) & (weights >= min_p * weights[:, :1])
