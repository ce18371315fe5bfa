"""The largest of a block of keys, in order: a bitonic sort that drops, after each merge, the half that lost.

K. E. Batcher, "Sorting networks and their applications", 1968; runs of the wanted length are sorted in turn down and
up, so that of two neighbours the larger of each pair of entries are the largest of both, and again bitonic.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def log2(number):
    return number.bit_length() - 1


@triton.jit
def largest(keys, SIZE: tl.constexpr, COUNT: tl.constexpr):
    """The `COUNT` largest of `SIZE` int64 keys, descending; powers of two, both."""
    for level in tl.static_range(1, log2(COUNT) + 1):
        keys = merge(keys, SIZE, level)
    for halving in tl.static_range(1, log2(SIZE // COUNT) + 1):
        keys = better_half(keys, SIZE >> halving, COUNT)
    return keys


@triton.jit
def better_half(keys, SIZE: tl.constexpr, COUNT: tl.constexpr):
    """Of each two sorted runs the larger entries, sorted again."""
    pairs = tl.reshape(keys, (SIZE // COUNT, 2, COUNT))
    return merge(tl.reshape(tl.max(pairs, 1), (SIZE,)), SIZE, log2(COUNT))


@triton.jit
def merge(keys, SIZE: tl.constexpr, LEVEL: tl.constexpr):
    """Sorts bitonic runs of 2^LEVEL keys: the first down, the next up, and so on."""
    down = (tl.arange(0, SIZE) & (1 << LEVEL)) == 0
    for step in tl.static_range(1, LEVEL + 1):
        keys = exchange(keys, down, SIZE, 1 << (LEVEL - step))
    return keys


@triton.jit
def exchange(keys, down, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """Orders each key and the one a stride away: the larger first where it is to go down."""
    pairs = tl.reshape(keys, (SIZE // (2 * STRIDE), 2, STRIDE))
    others = tl.reshape(tl.sum(pairs, 1, keep_dims=True) - pairs, (SIZE,))  # the sum may wrap, and wraps back
    first = (tl.arange(0, SIZE) & STRIDE) == 0
    return tl.where(down == first, tl.maximum(keys, others), tl.minimum(keys, others))
