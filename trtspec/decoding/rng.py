"""Counter-based randomness: what is drawn depends on the request and the position, never on the batch.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). The key is the request's
64-bit seed; the counter words are (position, choice, token id // 4, lane) and a token takes output word
token id % 4. Only `*`, `+`, `^`, `&` and `>>` on 64-bit integers are used, so NumPy and torch give the same bits.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

MAX_NOISE = 17.33
"""Upper bound of `gumbel`: -log(-log u) at the largest u, 1 - 2**-25."""
MIN_NOISE = -2.86
"""Lower bound of `gumbel`, at the smallest u, 2**-25."""


class Lane(enum.IntEnum):
    """Independent streams of one position."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Ten rounds over arrays of 32-bit words held in 64-bit integers (NumPy or torch, any shape that broadcasts).

    A product of two words may wrap a signed integer; its 64 bits are right all the same. Words are masked where they
    are multiplied and at the end; in between, what is above their 32 bits does no harm.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((product1 >> 32) ^ c1 ^ k0) & _MASK, ((product0 >> 32) ^ c3 ^ k1) & _MASK
        c1, c3 = product1, product0
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return c0, c1 & _MASK, c2, c3 & _MASK


def seed_words(seeds: list[int], device: torch.device | None = None) -> Tensor:
    """64-bit seeds as pairs of 32-bit words, [2, rows], low word first."""
    words = [[seed & _MASK for seed in seeds], [(seed >> 32) & _MASK for seed in seeds]]
    return torch.tensor(words, dtype=torch.int64, device=device)


def uniforms(key: Tensor, positions: Tensor, choices: Tensor, token_ids: Tensor, lane: Lane) -> Tensor:
    """Draws in (0, 1) as float64; arguments broadcast, `key` is [2, ...].

    float64, because the largest value, 1 - 2**-25, would round to 1 in float32 and make an infinite noise.
    """
    words = philox(
        (positions, choices, token_ids >> 2, torch.full_like(positions, int(lane))),
        (key[0], key[1]),
    )
    which = token_ids & 3
    word = torch.where(which < 2, torch.where(which == 0, words[0], words[1]), torch.where(which == 2, *words[2:]))
    return ((word >> 8).double() + 0.5) * 2.0**-24


def gumbel(key: Tensor, positions: Tensor, choices: Tensor, token_ids: Tensor, lane: Lane = Lane.TARGET) -> Tensor:
    """Standard Gumbel noise -log(-log u), float64; the arg-max of log p + noise has law p."""
    return -torch.log(-torch.log(uniforms(key, positions, choices, token_ids, lane)))
