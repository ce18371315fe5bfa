"""The noise of `trtspec.decoding.rng` in Triton: the same words of Philox4x32-10, so the same uniforms."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def draws(seed, position, choice, first, lane, COUNT: tl.constexpr):
    """The upper 24 bits of each token's word, from token `first` on, [COUNT]; both are multiples of four.

    `seed` is int64, the rest int32. A counter serves four tokens, in the order of its words.
    """
    fours = first // 4 + tl.arange(0, COUNT // 4)
    word0, word1, word2, word3 = tl.philox(seed, position, choice, fours, lane)
    return tl.interleave(tl.interleave(word0, word2), tl.interleave(word1, word3)) >> 8


@triton.jit
def gumbel(draw):
    """-log(-log u) for u = (draw + 0.5) / 2^24; float64, because the largest u would round to 1 in float32."""
    return -tl.log(-tl.log((draw.to(tl.float64) + 0.5) * (1.0 / 16777216.0)))
