"""From logits to the target's token: processors, then the Gumbel-coupled choice.

A row is one place where a token is chosen: the root of a sequence or a node of its draft. The noise of a row is a
function of (seed, position, choice), so every schedule that reaches the same logits chooses the same token.
The order of processors and their edge cases follow `transformers`: temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.decoding.rng import MAX_NOISE, MIN_NOISE, gumbel, seed_words
from trtspec.types import SamplingParams

NO_TOKEN = -1
"""Chosen where the logits are not numbers."""


@dataclass(frozen=True, slots=True)
class ChoiceRows:
    """How and where each of S rows chooses."""

    sampling: Sequence[SamplingParams]
    seeds: Sequence[int]
    positions: Sequence[int]
    """Index in the sequence of the token to choose, prompt included."""
    choices: Sequence[int]
    """Which of a request's n outputs."""


def choose(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """The target's token of each row, [S] int64; NO_TOKEN where a row's best logit is NaN or infinite.

    Greedy rows take the arg-max; others the arg-max of processed logits plus Gumbel noise. Ties go to the lowest id.
    """
    best = logits.max(dim=1)
    ids = best.indices
    sampled = [row for row, params in enumerate(rows.sampling) if not params.greedy]
    if sampled:
        ids[sampled] = _draw(logits[sampled].float(), _take(rows, sampled))
    return torch.where(torch.isfinite(best.values), ids, NO_TOKEN)


def process(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Logits divided by temperature, with truncated tokens at -inf, [S, V] float32; no row may be greedy."""
    temperatures = torch.tensor([params.temperature for params in sampling], dtype=torch.float32, device=logits.device)
    scores = logits.float() / temperatures.unsqueeze(1)
    truncated = [row for row, params in enumerate(sampling) if params.truncates]
    if truncated:
        scores[truncated] = _truncate(scores[truncated], [sampling[row] for row in truncated])
    return scores


def _truncate(scores: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    scores = _keep_from(scores, _top_k_floor(scores, [params.top_k for params in sampling]))
    scores = _keep_from(scores, _top_p_floor(scores, [params.top_p for params in sampling]))
    return _keep_from(scores, _min_p_floor(scores, [params.min_p for params in sampling]))


def _keep_from(scores: Tensor, floor: Tensor) -> Tensor:
    """Drop tokens below the floor; tokens equal to it stay, so that ties do not depend on a sort's order."""
    return scores.masked_fill(scores < floor, -math.inf)


def _top_k_floor(scores: Tensor, top_k: Sequence[int]) -> Tensor:
    """The k-th largest score of each row, [S, 1]; -inf where k is 0."""
    vocabulary = scores.shape[1]
    ks = torch.tensor([min(k, vocabulary) for k in top_k], device=scores.device)
    if not ks.any():
        return scores.new_full((len(top_k), 1), -math.inf)
    largest = scores.topk(int(ks.max()), dim=1).values
    floor = largest.gather(1, (ks - 1).clamp(min=0).unsqueeze(1))
    return floor.masked_fill((ks == 0).unsqueeze(1), -math.inf)


def _top_p_floor(scores: Tensor, top_p: Sequence[float]) -> Tensor:
    """The smallest score in each row's nucleus, [S, 1]: the fewest best tokens with probability top_p or more."""
    if all(p >= 1.0 for p in top_p):
        return scores.new_full((len(top_p), 1), -math.inf)
    ordered = scores.sort(dim=1, descending=True).values
    probabilities = ordered.double().softmax(dim=1)
    before = probabilities.cumsum(dim=1) - probabilities
    wanted = torch.tensor(top_p, dtype=torch.float64, device=scores.device).unsqueeze(1)
    size = (before < wanted).sum(dim=1, keepdim=True)
    # A row of NaN has no nucleus; `choose` reports it.
    return ordered.gather(1, (size - 1).clamp(min=0)).masked_fill(wanted >= 1.0, -math.inf)


def _min_p_floor(scores: Tensor, min_p: Sequence[float]) -> Tensor:
    """The score of min_p times the best token's probability, [S, 1]."""
    logs = [math.log(p) if p > 0.0 else -math.inf for p in min_p]
    return scores.max(dim=1, keepdim=True).values + scores.new_tensor(logs).unsqueeze(1)


def _draw(logits: Tensor, rows: ChoiceRows) -> Tensor:
    """Gumbel-max over the tokens that can win: noise is bounded, so the others need none."""
    scores = process(logits, rows.sampling)
    floor = scores.max(dim=1, keepdim=True).values - (MAX_NOISE - MIN_NOISE)
    row, token = torch.nonzero(scores >= floor, as_tuple=True)
    device = logits.device
    positions = torch.tensor(rows.positions, device=device)[row]
    choices = torch.tensor(rows.choices, device=device)[row]
    noise = gumbel(seed_words(list(rows.seeds), device)[:, row], positions, choices, token)
    values = scores[row, token].double() + noise
    best = values.new_full((len(rows.seeds),), -math.inf).scatter_reduce(0, row, values, "amax")
    ids = torch.where(values == best[row], token, logits.shape[1])
    return token.new_full((len(rows.seeds),), logits.shape[1]).scatter_reduce(0, row, ids, "amin")


def _take(rows: ChoiceRows, indices: Sequence[int]) -> ChoiceRows:
    return ChoiceRows(
        sampling=[rows.sampling[i] for i in indices],
        seeds=[rows.seeds[i] for i in indices],
        positions=[rows.positions[i] for i in indices],
        choices=[rows.choices[i] for i in indices],
    )
