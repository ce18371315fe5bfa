"""The noise of `trtspec.decoding.rng` on a device: the same bits of Philox4x32-10, the same uniforms."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def draws(seed, position, choice, fours, lane):
    """The upper 24 bits of the words of the tokens 4 f, 4 f + 1, 4 f + 2, 4 f + 3 of each f in `fours`, uint32.

    One run of Philox gives the words of four tokens. `seed` is int64, all else int32; only bits matter, not signs.
    """
    word0, word1, word2, word3 = tl.philox(seed, position, choice, fours, lane)
    return tl.interleave(tl.interleave(word0, word2), tl.interleave(word1, word3)) >> 8


@triton.jit
def gumbel(draw):
    """-log(-log u) for u = (draw + 0.5) 2^-24, float64; it is finite, and grows with the draw.

    float32 would round the uniforms next to 1, which win, to within 2^-25: where 100,000 tokens have noise, to some
    thousandths of 1 - u, and the largest u of all to 1.
    """
    uniform = (draw.to(tl.float64) + 0.5) * 5.9604644775390625e-08
    return -tl.log(-tl.log(uniform))
