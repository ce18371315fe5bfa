"""Rejection sampling along chains without probabilities in memory, in four launches.

The rule is that of Leviathan et al. 2023 and Chen et al. 2023 (`trtspec.decoding.verify.chain_rejection`, the oracle):
a node stays with probability min(1, p / q), and what follows a rejected one is drawn from max(0, p - q). Scores are
processed logits divided by temperature; p and q are their softmax over the vocabulary, the first V of W columns.

1. `chain_statistics`: largest score and sum of exponentials of each node's rows, in parts of the vocabulary.
2. `chain_acceptance`: merges them and decides how far each chain is accepted.
3. `chain_draw`: Gumbel-max over the law of what follows, in parts of the vocabulary.
4. `chain_follow`: the best of the parts.

How often scores are read: those of a node's target and draft rows once, by the first launch; the rows where the chain
ends once more, by the third. The target's row after the last node is read only where all nodes stay, and then once.
Draft scores of certain rows, and all of nodes beyond a count, are never read.

A target row with NaN or +inf has no law: no node stays there, and what follows is -1, as where all scores are -inf.
Such a draft row counts as a law of zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.kernels.noise import draws, gumbel
from plugins.kernels.softmax import INFINITY, finite

LARGEST = tl.constexpr(0x7FFFFFFFFFFFFFFF)
TARGET_LANE = tl.constexpr(0)


@triton.jit
def load_scores(scores, columns, limit):
    """Scores of the columns below a limit in float32, NaN as +inf; -inf of the others, which are not read.

    One comparison, because Triton's interpreter makes integers of a condition of one number and one of many.
    """
    values = tl.load(scores + columns, mask=columns < limit, other=-INFINITY).to(tl.float32)
    return tl.where(values != values, INFINITY, values)


@triton.jit
def store_part(scores, top, total, at):
    """The largest of a block of scores and the sum of exponentials below it; the sum is 0 where it is infinite."""
    best = tl.max(scores, axis=0)
    below = tl.where(finite(best), scores, -INFINITY) - tl.where(finite(best), best, 0.0)
    tl.store(top + at, best)
    tl.store(total + at, tl.sum(tl.exp(below), axis=0))


@triton.jit
def chain_statistics(
    target, draft, counts, certain,
    nodes, width, vocabulary,
    target_top, target_sum, draft_top, draft_sum,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for each part of the vocabulary, node and row; it leaves the statistics of both laws there.

    `target` is [B, N + 1, W], `draft` [B, N, W]; outputs are [B, N, parts]. Nodes beyond the count get -inf and 0.
    """
    part, node, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    real = node < tl.load(counts + row)
    drawn = real & (tl.load(certain + row) == 0)
    place = row * nodes + node
    p_scores = load_scores(target + (place + row) * width, columns, tl.where(real, vocabulary, 0))
    q_scores = load_scores(draft + place * width, columns, tl.where(drawn, vocabulary, 0))
    at = place * tl.num_programs(0) + part
    store_part(p_scores, target_top, target_sum, at)
    store_part(q_scores, draft_top, draft_sum, at)


@triton.jit
def merge_parts(top, total, place, real, splits, NODES: tl.constexpr, PARTS: tl.constexpr):
    """Statistics of whole rows from those of their parts, [NODES] each; the sum is 0 where there is no law."""
    best = tl.full((NODES,), -INFINITY, tl.float32)
    mass = tl.zeros((NODES,), tl.float32)
    start = 0
    while start < splits:
        part = start + tl.arange(0, PARTS)
        at = (place * splits)[:, None] + part[None, :]
        mask = real[:, None] & (part < splits)[None, :]
        tops = tl.load(top + at, mask=mask, other=-INFINITY)
        sums = tl.load(total + at, mask=mask, other=0.0)
        higher = tl.maximum(best, tl.max(tops, axis=1))
        known = finite(higher)
        shift = tl.where(known, higher, 0.0)
        weights = tl.exp(tl.where(known[:, None], tops, -INFINITY) - shift[:, None])
        mass = mass * tl.exp(tl.where(known, best, -INFINITY) - shift) + tl.sum(sums * weights, axis=1)
        best = higher
        start += PARTS
    return best, mass


@triton.jit
def probability(scores, top, total):
    """Of some scores, from the statistics of their law; 0 where the sum is 0.

    The quotient is rounded, because `/` is an approximation that each assembler writes in its own way.
    """
    known = total > 0.0
    below = tl.where(known, scores, -INFINITY) - tl.where(known, top, 0.0)
    return tl.div_rn(tl.exp(below), tl.where(known, total, 1.0))


@triton.jit
def pick(values, chosen):
    """The one of a block of values that is chosen, or 0 where none is."""
    return tl.sum(tl.where(chosen, values, 0.0), axis=0)


@triton.jit
def chain_acceptance(
    target, draft, tokens, counts, certain, uniforms, target_top, target_sum, draft_top, draft_sum,
    nodes, width, splits,
    accepted, target_best, target_mass, draft_best, draft_mass,
    NODES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program a row: how many nodes stay, and the statistics of both laws where the chain ends.

    A node stays iff u q < p, u of [B, N] uniforms below 1: so always where q <= p, even if u was rounded to 1. The
    draft's sum is 0 where nothing of it is to be subtracted: after the last node, and in certain rows.
    """
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    count = tl.minimum(tl.load(counts + row), nodes)
    real = node < count
    drawn = tl.load(certain + row) == 0
    place = row * nodes + node
    token = tl.load(tokens + place, mask=real, other=0)
    p_top, p_sum = merge_parts(target_top, target_sum, place, real, splits, NODES, PARTS)
    q_top, q_sum = merge_parts(draft_top, draft_sum, place, real, splits, NODES, PARTS)
    p = probability(load_scores(target + (place + row) * width, token, tl.where(real, width, 0)), p_top, p_sum)
    read = tl.where(node < tl.where(drawn, count, 0), width, 0)
    q = probability(load_scores(draft + place * width, token, read), q_top, q_sum)
    q = tl.where(drawn, q, 1.0)
    u = tl.load(uniforms + place, mask=real, other=0.0)
    stays = real & (p > 0.0) & ((q <= p) | (u * q < p))
    end = tl.minimum(tl.min(tl.where(stays, NODES, node), axis=0), count)
    here = real & (node == end)
    tl.store(accepted + row, end)
    tl.store(target_best + row, pick(p_top, here))
    tl.store(target_mass + row, pick(p_sum, here))
    tl.store(draft_best + row, pick(q_top, here))
    tl.store(draft_mass + row, pick(q_sum, here))


@triton.jit
def order_bits(score):
    """An int64 that orders as a float64 does, and says all of it: of a negative number all bits but the sign flip."""
    bits = score.to(tl.int64, bitcast=True)
    return bits ^ ((bits >> 63) & LARGEST)


@triton.jit
def store_best(scores, columns, score, token, at):
    """The best of a block of float64 scores and its column, of equals the lowest; -1 where it is infinite."""
    best = tl.max(scores, axis=0)
    column = tl.min(tl.where(scores == best, columns, 0x7FFFFFFF), axis=0)
    tl.store(score + at, order_bits(best))
    tl.store(token + at, tl.where(finite(best), column, -1))


@triton.jit
def chain_draw(
    target, draft, tokens, counts, certain, seeds, positions, choices,
    accepted, target_best, target_mass, draft_best, draft_mass,
    nodes, width, vocabulary,
    residual_score, residual_token, target_score, target_token,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for each part of the vocabulary and row: its best token with noise, under the residual and under p.

    Both, because only all parts together tell that a residual is empty. After the last node the residual is p; of a
    certain row it is p without the token. Outputs are [B, parts]; scores are float64, ordered as int64.
    """
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    end = tl.load(accepted + row)
    rejected = end < tl.minimum(tl.load(counts + row), nodes)
    sure = tl.load(certain + row) != 0
    drawn = rejected & (sure == 0)
    place = row * nodes + end
    scores = load_scores(target + (place + row) * width, columns, vocabulary)
    theirs = load_scores(draft + place * width, columns, tl.where(drawn, vocabulary, 0))
    p = probability(scores, tl.load(target_best + row), tl.load(target_mass + row))
    left = p - probability(theirs, tl.load(draft_best + row), tl.load(draft_mass + row))
    logs = tl.where(left > 0.0, tl.log(tl.where(left > 0.0, left, 1.0)), -INFINITY)
    banned = columns == tl.load(tokens + place, mask=rejected & sure, other=-1)
    residual = tl.where(scores < INFINITY, tl.where(drawn, logs, tl.where(banned, -INFINITY, scores)), INFINITY)
    fours = part * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    position = tl.load(positions + row) + end
    noise = gumbel(draws(tl.load(seeds + row), position, tl.load(choices + row), fours, TARGET_LANE))
    at = row * tl.num_programs(0) + part
    store_best(residual.to(tl.float64) + noise, columns, residual_score, residual_token, at)
    store_best(scores.to(tl.float64) + noise, columns, target_score, target_token, at)


@triton.jit
def merge_best(score, token, row, splits, PARTS: tl.constexpr):
    """The token of a row's best part, of equals the lowest."""
    best = -LARGEST
    winner = -1
    start = 0
    while start < splits:
        part = start + tl.arange(0, PARTS)
        scores = tl.load(score + row * splits + part, mask=part < splits, other=-LARGEST)
        found = tl.load(token + row * splits + part, mask=part < splits, other=-1)
        highest = tl.max(scores, axis=0)
        lowest = tl.min(tl.where(scores == highest, found, 0x7FFFFFFF), axis=0)
        winner = tl.where(highest > best, lowest, winner)
        best = tl.maximum(best, highest)
        start += PARTS
    return winner


@triton.jit
def chain_follow(
    residual_score, residual_token, target_score, target_token, splits, token, PARTS: tl.constexpr
):  # fmt: skip
    """One program a row: the token after the accepted ones; from p where the residual is empty by rounding."""
    row = tl.program_id(0).to(tl.int64)
    residual = merge_best(residual_score, residual_token, row, splits, PARTS)
    whole = merge_best(target_score, target_token, row, splits, PARTS)
    tl.store(token + row, tl.where(residual >= 0, residual, whole))
