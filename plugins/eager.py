"""What the kernels do in plain torch, with the launchers' names and arguments: the oracle's own functions, called.

Kernels are tested against these, and where there is no Triton these do the work.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plugins.launch import ChosenTokens
from plugins.sampling_specs import MOST
from trtspec.decoding.rng import Lane
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose
from trtspec.types import SamplingParams

_GREEDY, _SAMPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
_WORD64 = 2**64 - 1


def choose_token(
    logits: Tensor,
    seeds: Tensor,
    positions: Tensor,
    choices: Tensor,
    noisy: Tensor,
    wanted: Tensor,
    vocabulary: int,
    lane: Lane = Lane.TARGET,
) -> ChosenTokens:
    scores = logits[:, :vocabulary].float()
    rows = ChoiceRows(
        sampling=[_SAMPLED if draws else _GREEDY for draws in noisy.tolist()],
        seeds=[seed & _WORD64 for seed in seeds.tolist()],
        positions=positions.tolist(),
        choices=choices.tolist(),
        lane=lane,
    )
    ids = choose(scores, rows)
    logprobs = scores.log_softmax(dim=1)
    logprobs[ids == NO_TOKEN] = math.nan
    asked = wanted.long().where(wanted < vocabulary, NO_TOKEN)
    return ChosenTokens(ids.int(), _at(logprobs, ids), _at(logprobs, asked))


def top_logits(logits: Tensor, vocabulary: int, most: int = MOST) -> Tensor:
    scores = logits[:, :vocabulary].float()
    ordered = scores.sort(dim=1, descending=True, stable=True)
    told = torch.arange(most, device=logits.device).clamp(max=vocabulary - 1)
    parts = (ordered.values[:, told], ordered.indices[:, told].float(), scores.logsumexp(dim=1, keepdim=True))
    return torch.cat(parts, dim=1).masked_fill(scores.isnan().any(dim=1, keepdim=True), math.nan)


def _at(logprobs: Tensor, ids: Tensor) -> Tensor:
    """Each row's at its id; NaN where that is no token."""
    found = logprobs.gather(1, ids.clamp(min=0).unsqueeze(1)).squeeze(1)
    return found.masked_fill(ids < 0, math.nan)
