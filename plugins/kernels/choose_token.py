"""The target's token of each row by Gumbel-max, and log-probabilities: `trtspec.decoding.sampling.choose` on a device.

Logits are processed: divided by temperature, what truncation removed at -inf. Noise is added in float64, as the oracle
does, and what a split found is kept as the bits of that double in an order-preserving int64. So ids are the oracle's,
but where two logarithms that differ in their last bit decide: at two values within some 10^-15 of each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.kernels.noise import draws, gumbel
from plugins.kernels.softmax import INFINITY, finite, read, weights

LOWEST: tl.constexpr = tl.constexpr(-(2**63))
"""Below the key of every number."""
NO_ID: tl.constexpr = tl.constexpr(2**31 - 1)
NO_TOKEN: tl.constexpr = tl.constexpr(-1)
NAN: tl.constexpr = tl.constexpr(float("nan"))


@triton.jit
def key_of(value):
    """The bits of a float64 as an int64 of the same order."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int64, bitcast=True)  # of two zeros neither is larger
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@triton.jit
def choose_token_parts(
    logits,
    seeds,
    positions,
    choices,
    noisy,
    wanted,
    width,
    vocabulary,
    lane,
    part_keys,
    part_ids,
    part_scores,
    part_wanted,
    part_best,
    part_sums,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """What one split of one row offers: its winner, and its share of the softmax.

    A block is given noise only where its best logit could win with the block's largest noise. The logit of the wanted
    token is -inf in other splits, and +inf, which none of a sound row is, where the row wants none.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seed, position, choice = tl.load(seeds + row), tl.load(positions + row), tl.load(choices + row)
    draws_noise, asked = tl.load(noisy + row) != 0, tl.load(wanted + row)
    leader = tl.full((), -INFINITY, tl.float64)
    leader_id, leader_score = tl.full((), NO_ID, tl.int32), tl.full((), -INFINITY, tl.float32)
    best, told = tl.full((), -INFINITY, tl.float32), tl.full((), -INFINITY, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    first = split * SPLIT
    end = tl.minimum(first + SPLIT, vocabulary)
    while first < end:
        ids = first + tl.arange(0, BLOCK)
        scores = read(logits + row * width, ids, vocabulary)
        top = tl.max(scores, 0)
        higher = tl.maximum(best, top)
        best, total = higher, total * weights(best, higher) + tl.sum(weights(scores, higher), 0)
        told = tl.maximum(told, tl.max(tl.where(ids == asked, scores, -INFINITY), 0))
        values, reach = scores.to(tl.float64), top.to(tl.float64)
        if draws_noise:
            drawn = draws(seed, position, choice, first // 4 + tl.arange(0, BLOCK // 4), lane)
            reach = reach + gumbel(tl.max(drawn, 0))
            if reach > leader:
                values = values + gumbel(drawn)
        if reach > leader:
            value = tl.max(values, 0)
            if value > leader:
                leader, leader_id = value, tl.min(tl.where(values == value, ids, NO_ID), 0)
                leader_score = tl.max(tl.where(ids == leader_id, scores, -INFINITY), 0)
        first += BLOCK
    at = row * tl.num_programs(1) + split
    tl.store(part_keys + at, key_of(leader))
    tl.store(part_ids + at, leader_id)
    tl.store(part_scores + at, leader_score)
    tl.store(part_wanted + at, tl.where((asked >= 0) & (asked < vocabulary), told, INFINITY))
    tl.store(part_best + at, best)
    tl.store(part_sums + at, total)


@triton.jit
def choose_token_merge(
    part_keys,
    part_ids,
    part_scores,
    part_wanted,
    part_best,
    part_sums,
    splits,
    ids,
    logprobs,
    wanted_logprobs,
    BLOCK: tl.constexpr,
):
    """The token of one row from what its splits offer; no token and no log-probability without a finite best logit."""
    row = tl.program_id(0).to(tl.int64)
    leader, leader_id = tl.full((), LOWEST, tl.int64), tl.full((), NO_ID, tl.int32)
    score, told = tl.full((), -INFINITY, tl.float32), tl.full((), -INFINITY, tl.float32)
    best, total = tl.full((), -INFINITY, tl.float32), tl.full((), 0.0, tl.float32)
    start = 0
    while start < splits:
        split = start + tl.arange(0, BLOCK)
        at, there = row * splits + split, split < splits
        keys = tl.load(part_keys + at, mask=there, other=LOWEST)
        tokens = tl.load(part_ids + at, mask=there, other=NO_ID)
        scores = tl.load(part_scores + at, mask=there, other=-INFINITY)
        tops = tl.load(part_best + at, mask=there, other=-INFINITY)
        sums = tl.load(part_sums + at, mask=there, other=0.0)
        found = tl.load(part_wanted + at, mask=there, other=-INFINITY)
        key = tl.max(keys, 0)
        if key > leader:
            leader, leader_id = key, tl.min(tl.where(keys == key, tokens, NO_ID), 0)
            score = tl.max(tl.where(tokens == leader_id, scores, -INFINITY), 0)
        higher = tl.maximum(best, tl.max(tops, 0))
        best, total = higher, total * weights(best, higher) + tl.sum(sums * weights(tops, higher), 0)
        told = tl.maximum(told, tl.max(found, 0))
        start += BLOCK
    sound = finite(best)
    normaliser = tl.where(sound, best, 0.0) + tl.log(tl.where(sound, total, 1.0))
    tl.store(ids + row, tl.where(sound, leader_id, NO_TOKEN))
    tl.store(logprobs + row, tl.where(sound, score - normaliser, NAN))
    tl.store(wanted_logprobs + row, tl.where(sound & (told < INFINITY), told - normaliser, NAN))
