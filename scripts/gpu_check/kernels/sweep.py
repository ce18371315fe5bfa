"""A kernel that reads an array once and does next to nothing else: what reading costs on a device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sweep(words, count, sums, BLOCK: tl.constexpr):
    """The sum of each block of int32 words."""
    block = tl.program_id(0)
    place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + block, tl.sum(tl.load(words + place, mask=place < count, other=0), 0))
