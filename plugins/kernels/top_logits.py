"""The best logits of each row with their ids, and the log of the sum of all exponentials, in one read.

A logit and its id are one int64 that sorts as they do: the float's bits, made order-preserving, above what is left of
the largest id, so that of equal logits the lower id is the larger key.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.kernels.softmax import INFINITY, weights
from plugins.kernels.sorting import largest

LOWEST: tl.constexpr = tl.constexpr(-(2**63))
"""Below the key of every logit."""
NAN: tl.constexpr = tl.constexpr(float("nan"))


@triton.jit
def keys_of(values, ids):
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)  # of two zeros neither is larger
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def values_of(keys):
    ordered = (keys >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ids_of(keys):
    return 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def top_logits_parts(
    logits, width, vocabulary, part_keys, part_best, part_sums, BLOCK: tl.constexpr, MOST: tl.constexpr
):
    """The best of one split of one row, and its share of the sum; its best is NaN where one of its logits is."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = split * BLOCK + tl.arange(0, BLOCK)
    there = ids < vocabulary
    values = tl.load(logits + row * width + ids, mask=there, other=-INFINITY).to(tl.float32)
    nans = tl.sum((values != values).to(tl.int32), 0)
    values = tl.where(values != values, INFINITY, values)
    best = tl.max(values, 0)
    top = largest(tl.where(there, keys_of(values, ids), LOWEST), BLOCK, MOST)
    at = row * tl.num_programs(1) + split
    tl.store(part_keys + at * MOST + tl.arange(0, MOST), top)
    tl.store(part_best + at, tl.where(nans > 0, NAN, best))
    tl.store(part_sums + at, tl.sum(weights(values, best), 0))


@triton.jit
def top_logits_merge(
    part_keys,
    part_best,
    part_sums,
    splits,
    vocabulary,
    top,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    ROW: tl.constexpr,
):
    """The best of one row from those of its splits, BLOCK of them at a time."""
    row = tl.program_id(0).to(tl.int64)
    kept = tl.full((MOST,), LOWEST, tl.int64)
    best, total = tl.full((), -INFINITY, tl.float32), tl.full((), 0.0, tl.float32)
    nans = tl.full((), 0, tl.int32)
    start = 0
    while start < splits:
        split = start + tl.arange(0, BLOCK)
        at, there = row * splits + split, split < splits
        tops = tl.load(part_best + at, mask=there, other=-INFINITY)
        sums = tl.load(part_sums + at, mask=there, other=0.0)
        nans += tl.sum((tops != tops).to(tl.int32), 0)
        tops = tl.where(tops != tops, INFINITY, tops)
        higher = tl.maximum(best, tl.max(tops, 0))
        best, total = higher, total * weights(best, higher) + tl.sum(sums * weights(tops, higher), 0)
        entry = start * MOST + tl.arange(0, BLOCK * MOST)
        keys = tl.load(part_keys + row * splits * MOST + entry, mask=entry < splits * MOST, other=LOWEST)
        kept = largest(tl.interleave(kept, largest(keys, BLOCK * MOST, MOST)), 2 * MOST, MOST)
        start += BLOCK
    place = tl.arange(0, MOST)
    last = tl.min(tl.where(place < vocabulary, kept, 0x7FFFFFFFFFFFFFFF), 0)
    kept = tl.where(place < vocabulary, kept, last)
    normaliser = best + tl.log(tl.maximum(total, 1.0))  # below 1 only where all is -inf
    sound = nans == 0
    at = top + row * ROW + place
    tl.store(at, tl.where(sound, values_of(kept), NAN))
    tl.store(at + MOST, tl.where(sound, ids_of(kept).to(tl.float32), NAN))
    tl.store(top + row * ROW + 2 * MOST, tl.where(sound, normaliser, NAN))
