"""Device functions for the sum of exponentials of a row that is read in pieces.

NaN counts as +inf: a row whose best logit is not finite has no law, and its best says so.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITY: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def read(logits, ids, vocabulary):
    """Logits at some ids as float32; -inf beyond the vocabulary."""
    values = tl.load(logits + ids, mask=ids < vocabulary, other=-INFINITY).to(tl.float32)
    return tl.where(values != values, INFINITY, values)


@triton.jit
def weights(values, best):
    """exp(values - best), at most 1; numbers, too, where best is infinite."""
    base = tl.where(tl.abs(best) == INFINITY, 0.0, best)
    return tl.exp(tl.minimum(values - base, 0.0))


@triton.jit
def finite(value):
    return tl.abs(value) < INFINITY
