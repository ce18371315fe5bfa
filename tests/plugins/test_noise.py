"""Philox in Triton: the published vectors, and the oracle's uniforms token by token."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from plugins.kernels.noise import draws, gumbel
from tests.unit.test_rng import VECTORS
from trtspec.decoding import rng


@triton.jit
def write_draws(seed, position, choice, fours, lane, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    found = draws(tl.load(seed), tl.load(position), tl.load(choice), tl.load(fours + at), tl.load(lane))
    tl.store(out + tl.arange(0, 4 * COUNT), found.to(tl.int64))


@triton.jit
def write_noise(drawn, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out + at, gumbel(tl.load(drawn + at)))


def signed(number: int, bits: int) -> int:
    return number - 2**bits if number >= 2 ** (bits - 1) else number


def words(seed: int, position: int, choice: int, fours: list[int], lane: int) -> torch.Tensor:
    narrow = ([position], [choice], fours, [lane])
    counter = [torch.tensor([signed(word, 32) for word in item], dtype=torch.int32) for item in narrow]
    out = torch.empty(4 * len(fours), dtype=torch.int64)
    write_draws[(1,)](torch.tensor([signed(seed, 64)]), *counter, out, COUNT=len(fours))
    return out


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter, key, expected) -> None:
    position, choice, fours, lane = counter
    found = words(key[0] | key[1] << 32, position, choice, [fours], lane)
    assert found.tolist() == [word >> 8 for word in expected]


@pytest.mark.parametrize("lane", list(rng.Lane))
def test_tokens_have_the_oracles_uniforms_in_their_order(lane: rng.Lane) -> None:
    seed, count = 0x8123456789ABCDEF, 64
    here = (torch.full((4 * count,), value) for value in (17, 3))
    expected = rng.uniforms(rng.seed_words([seed]).expand(2, 4 * count), *here, torch.arange(4 * count), lane)
    found = words(seed, 17, 3, list(range(count)), int(lane))
    assert ((found.double() + 0.5) * 2.0**-24).equal(expected)


def test_noise_is_finite_at_both_ends_and_grows_with_the_draw() -> None:
    drawn = torch.tensor([0, 1, 2**23, 2**24 - 2, 2**24 - 1, 5, 77, 1000], dtype=torch.int32).sort().values
    out = torch.empty(8, dtype=torch.float64)
    write_noise[(1,)](drawn, out, COUNT=8)
    expected = -torch.log(-torch.log((drawn.double() + 0.5) * 2.0**-24))
    torch.testing.assert_close(out, expected, atol=0, rtol=1e-15)
    assert (out.diff() > 0).all() and out[0] > rng.MIN_NOISE and out[-1] < rng.MAX_NOISE
