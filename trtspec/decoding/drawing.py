"""How a drafter draws tokens from a law of its own, for rejection sampling.

The other half of the rule is `verify.chain_rejection`, which needs the law of every token that was drawn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from trtspec.decoding.rng import Lane
from trtspec.decoding.sampling import ChoiceRows, choose, edited, take, token_law
from trtspec.decoding.sending import sent


class Drawn(NamedTuple):
    """The drafted tokens of S places."""

    tokens: Tensor  # [S] int64, the target's ids; NO_TOKEN where there is none, and the draft must end
    probs: Tensor  # [S, V] float32, what each was drawn from; zero for greedy rows, whose best token is certain


def draw(logits: Tensor, rows: ChoiceRows, token_ids: Tensor | None, vocabulary: int) -> Drawn:
    """Draw from a drafter's logits, [S, D], as the target will from its own: same processors, noise of lane DRAFT.

    `token_ids` is [D], the target's id of each of the drafter's tokens; None where token i is id i, and tokens from
    `vocabulary` on are then padding.
    """
    scores = edited(_spread(logits.float(), token_ids, vocabulary), rows)
    rows = replace(rows, edits=(), lane=Lane.DRAFT)
    probs = scores.new_zeros(scores.shape)
    sampled = [row for row, params in enumerate(rows.sampling) if not params.greedy]
    if sampled:
        there = sent(sampled, torch.int64, scores.device)
        probs[there] = token_law(scores[there], take(rows, sampled))
    return Drawn(choose(scores, rows), probs)


def _spread(logits: Tensor, token_ids: Tensor | None, vocabulary: int) -> Tensor:
    """[S, V]: the logits at the target's ids, -inf elsewhere."""
    if token_ids is None and logits.shape[1] >= vocabulary:
        return logits[:, :vocabulary]
    if token_ids is None:
        return pad(logits, (0, vocabulary - logits.shape[1]), value=-math.inf)
    scores = logits.new_full((len(logits), vocabulary), -math.inf)
    scores[:, token_ids] = logits
    return scores
