"""How a drafter draws tokens from a law of its own, for rejection sampling.

The other half of the rule is `verify.chain_rejection`, which needs the law of every token that was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from trtspec.decoding.rng import Lane
from trtspec.decoding.sampling import ChoiceRows, choose, edited, take, token_law


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
        probs[sampled] = token_law(scores[sampled], take(rows, sampled))
    return Drawn(choose(scores, rows), probs)


def _spread(logits: Tensor, token_ids: Tensor | None, vocabulary: int) -> Tensor:
    """[S, V]: the logits at the target's ids, -inf elsewhere."""
    if token_ids is None and logits.shape[1] >= vocabulary:
        return logits[:, :vocabulary]
    columns: Tensor | Sequence[int] = range(logits.shape[1]) if token_ids is None else token_ids
    scores = logits.new_full((len(logits), vocabulary), -math.inf)
    scores[:, columns] = logits
    return scores
