"""Processors that edit logits by token and by history; temperature and truncation come after them, in `sampling`.

Edits name tokens, so that tokens and places nobody edits cost nothing. Order and edge cases are those of
`transformers`: bias first, then the repetition penalty; presence and frequency penalties, which it lacks, come last.
A token that must not be chosen is at -inf, which nothing else changes. Where edits are is decided in `edits`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.types import SamplingParams


class Values(NamedTuple):
    """Values of E tokens, no token twice."""

    tokens: Tensor  # [E] int64
    values: Tensor  # [E] float32


@dataclass(frozen=True, slots=True)
class PlaceEdits:
    """The edits of one place."""

    sampling: SamplingParams
    """Its penalties."""
    bias: Values
    """What is added; -inf forbids."""
    seen: Values
    """Tokens of prompt and output, and how often each is in the output; empty without penalties."""
    forbidden: Tensor  # [E] int64: what must not follow at this place
    allowed: Tensor | None = None  # [V] bool: what alone may follow, under a guide

    @classmethod
    def of_guide(cls, allowed: Tensor) -> PlaceEdits:
        """Nothing but what a guide allows."""
        nothing = allowed.new_empty(0, dtype=torch.int64)
        none = Values(nothing, nothing.float())
        return cls(SamplingParams(), bias=none, seen=none, forbidden=nothing, allowed=allowed)


def apply(logits: Tensor, edits: PlaceEdits) -> None:
    """Edit the logits of one place, [V] float32, in place."""
    if len(edits.bias.tokens):
        logits.index_add_(0, *edits.bias)
    if len(edits.seen.tokens):
        tokens, counts = edits.seen
        logits[tokens] = _penalise(logits[tokens], counts, edits.sampling)
    logits[edits.forbidden] = -math.inf
    if edits.allowed is not None:
        logits.masked_fill_(~edits.allowed, -math.inf)


def _penalise(logits: Tensor, counts: Tensor, sampling: SamplingParams) -> Tensor:
    """Repetition as in Keskar et al. 2019, section 4.1; then what frequency and presence take off."""
    repetition = sampling.repetition_penalty
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    return logits - (sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0))
