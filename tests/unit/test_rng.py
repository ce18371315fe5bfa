"""Philox: published vectors, equal bits in NumPy and torch, and the bounds of the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.plans import decode_row, plan_of
from trtspec.decoding.chooser import accept_draws
from trtspec.decoding.rng import MAX_NOISE, MIN_NOISE, Lane, gumbel, philox, seed_words, uniforms
from trtspec.types import Request

# From the known-answer file of the authors' Random123 library, philox4x32 with 10 rounds.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors_in_torch_and_numpy(counter, key, expected) -> None:
    in_torch = philox(tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key))
    in_numpy = philox(tuple(np.array([word]) for word in counter), tuple(np.array([word]) for word in key))
    assert tuple(int(word) for word in in_torch) == expected
    assert tuple(int(word[0]) for word in in_numpy) == expected


def test_golden_uniforms() -> None:
    """The mapping from request to draw: a change of it changes every seeded text, and must be meant."""
    key = seed_words([0x0123456789ABCDEF]).expand(2, 5)
    tokens = torch.tensor([0, 1, 2, 3, 49151])
    draws = uniforms(key, torch.full((5,), 17), torch.full((5,), 2), tokens, Lane.TARGET)
    words = philox(tuple(np.array([word]) for word in (17, 2, 0, 0)), (np.array([0x89ABCDEF]), np.array([0x01234567])))
    expected = [((int(word[0]) >> 8) + 0.5) / 2**24 for word in words]
    assert draws[:4].tolist() == expected
    assert draws[4].item() == pytest.approx(0.025745302438735962, abs=0)


@pytest.mark.parametrize("changed", ["seed", "position", "choice", "token", "lane"])
def test_every_coordinate_changes_the_draw(changed: str) -> None:
    def draw(seed: int = 1, position: int = 2, choice: int = 0, token: int = 5, lane: Lane = Lane.TARGET) -> float:
        at = (torch.tensor([position]), torch.tensor([choice]), torch.tensor([token]))
        return uniforms(seed_words([seed]), *at, lane).item()

    other = {"seed": 1 + 2**32, "position": 3, "choice": 1, "token": 6, "lane": Lane.DRAFT}
    assert draw() != draw(**{changed: other[changed]})


def test_noise_stays_within_its_bounds() -> None:
    """The choice leaves out tokens that could only win with noise beyond the bounds."""
    largest, smallest = 1 - 2.0**-25, 2.0**-25
    assert -math.log(-math.log(largest)) < MAX_NOISE < -math.log(-math.log(largest)) + 0.01
    assert -math.log(-math.log(smallest)) - 0.01 < MIN_NOISE < -math.log(-math.log(smallest))
    count = 100_000
    zeros = torch.zeros(count, dtype=torch.int64)
    noise = gumbel(seed_words([9]).expand(2, count), zeros, zeros, torch.arange(count))
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)


def test_whether_a_drafted_token_stays_is_drawn_by_seed_and_position_alone() -> None:
    """However deep the draft is, from wherever it begins, and whatever stands beside it."""
    early, late = (decode_row(Request("a", (1, 2), 9, seed=7), (5,) * output) for output in (1, 2))
    other = decode_row(Request("b", (1, 2), 9, seed=8), (5,))
    deep = accept_draws(plan_of(early, other), 4)
    assert torch.equal(deep[0, 1:], accept_draws(plan_of(late), 3)[0])
    assert torch.equal(deep[1], accept_draws(plan_of(other), 4)[0])
    assert not torch.isin(deep[0], deep[1]).any() and len(set(deep[0].tolist())) == 4
