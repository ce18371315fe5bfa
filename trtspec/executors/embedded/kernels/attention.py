"""Rotary attention of few new tokens over a paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from trtspec.executors.embedded.kernels.bits import rounded_like
from trtspec.executors.embedded.kernels.blends import blend
from trtspec.executors.embedded.kernels.compiling import inlined, parallel, serial
from trtspec.executors.embedded.kernels.dots import tile
from trtspec.executors.embedded.kernels.exponential import exp
from trtspec.executors.embedded.kernels.products import Floats, room
from trtspec.executors.embedded.kernels.vectors import LANES, STEP

Ints = NDArray[np.int32]
Cached = NDArray[np.float32] | NDArray[np.uint16]
"""Keys or values, as float32 or as the bits of bfloat16."""
_dots_1x1, _dots_4x1, _dots_1x4, _dots_2x4 = tile(1, 1), tile(4, 1), tile(1, 4), tile(2, 4)
"""By keys and queries."""
_WIDE, _FOUR_WIDE = 64, 64 if LANES > STEP else 16
"""Columns whose sums are held in registers, for one query and for four."""
_blend_wide, _blend_narrow = blend(1, _WIDE), blend(1, STEP)
_blend_wide_4, _blend_narrow_4 = blend(4, _FOUR_WIDE), blend(4, STEP)


class Heads(NamedTuple):
    """What a layer does with its heads."""

    queries: int
    """How many there are; keys and values may have fewer."""
    scale: np.float32
    query_norm: Floats  # [D], or empty where the model has none
    key_norm: Floats  # [D], or empty
    epsilon: np.float32


class Rotation(NamedTuple):
    """Of the new tokens (`RotaryTable`)."""

    cos: Floats  # [T, D]
    sin: Floats  # [T, D]


class Pages(NamedTuple):
    """One layer's cache, and where in it the new tokens of a pass lie (`PagedTokens`)."""

    keys: Cached  # [blocks, kv_heads, block_tokens, D]
    values: Cached
    rows: Ints  # [T]
    past: Ints  # [B]
    begins: Ints  # [B + 1]
    blocks: Ints
    block_begins: Ints  # [B + 1]
    mask: NDArray[np.uint8]
    mask_begins: Ints  # [B + 1], or empty
    longest: int


@dataclass(frozen=True)
class PagedTokens:
    """Where the new tokens of a pass lie, as `openvino.inputs` has it, and the cache that they are written to.

    A row's tokens see what is cached before them; of each other, what its mask says, or without one those before.
    """

    pool: Cached  # [layers, 2, blocks, kv_heads, block_tokens, D]: keys and values
    past: Ints  # [B]: cached tokens
    begins: Ints  # [B + 1]: a row's first new token in flat order
    blocks: Ints
    block_begins: Ints  # [B + 1]: a row's first block in `blocks`
    mask: NDArray[np.uint8]
    mask_begins: Ints  # [B + 1] begins of each row's [Q * Q] in `mask`, or empty where no row has one

    def of(self, layer: int) -> Pages:
        """As a layer's kernels read it."""
        keys, values = self.pool[layer]
        return Pages(
            *(keys, values, self._rows, self.past, self.begins, self.blocks, self.block_begins),
            *(self.mask, self.mask_begins, self._longest),
        )

    @cached_property
    def _rows(self) -> Ints:
        """[T]: the row of each new token."""
        return np.repeat(np.arange(len(self.past), dtype=np.int32), np.diff(self.begins))

    @cached_property
    def _longest(self) -> int:
        """Most positions that a token looks at."""
        return int((self.past + np.diff(self.begins)).max())


@serial
def attend(stacked: Floats, heads: Heads, rotation: Rotation, pages: Pages) -> Floats:
    """Normalise and rotate heads, store keys and values, and attend.

    `stacked` [padded, (heads + 2 kv_heads) D] holds queries, keys and values and is written to. Returns
    [padded, heads * D].
    """
    width, tokens = pages.keys.shape[3], pages.rows.shape[0]
    parts = stacked.reshape(stacked.shape[0], -1, width)
    queries = room(heads.queries * tokens, width).reshape(heads.queries, tokens, width)
    scores = np.empty((heads.queries, tokens, pages.longest), np.float32)
    sums = room(heads.queries * tokens, width).reshape(heads.queries, tokens, width)
    mixed = room(stacked.shape[0], heads.queries * width).reshape(-1, heads.queries, width)
    sums[:] = 0
    mixed[tokens:] = 0
    _store(parts, heads, rotation, pages, queries)
    _mix(queries, heads, pages, scores, sums, mixed)
    return mixed.reshape(stacked.shape[0], -1)


@serial
def _store(stacked: Floats, heads: Heads, rotation: Rotation, pages: Pages, queries: Floats) -> None:
    """Queries go head by head, keys and values to their places in the cache."""
    kv_heads, size = pages.keys.shape[1], pages.keys.shape[2]
    for token in range(pages.rows.shape[0]):
        cos, sin = rotation.cos[token], rotation.sin[token]
        for head in range(heads.queries):
            _turn(stacked[token, head], heads.query_norm, heads.epsilon, cos, sin)
            queries[head, token] = stacked[token, head]
        row = pages.rows[token]
        position = pages.past[row] + token - pages.begins[row]
        block, place = pages.blocks[pages.block_begins[row] + position // size], position % size
        for head in range(kv_heads):
            _turn(stacked[token, heads.queries + head], heads.key_norm, heads.epsilon, cos, sin)
            _keep(stacked[token, heads.queries + head], pages.keys[block, head, place])
            _keep(stacked[token, heads.queries + kv_heads + head], pages.values[block, head, place])


@inlined
def _keep(x: Floats, place: Cached) -> None:
    for d in range(x.shape[0]):
        place[d] = rounded_like(x[d], place)  # type: ignore[call-arg]


@serial
def _turn(x: Floats, norm: Floats, epsilon: np.float32, cos: Floats, sin: Floats) -> None:
    """A head normalised and rotated, half-split (Su et al. 2021)."""
    half = x.shape[0] // 2
    if norm.size:
        square = np.float32(0)
        for d in range(x.shape[0]):
            square += x[d] * x[d]
        factor = np.float32(1 / np.sqrt(square / x.shape[0] + epsilon))
        for d in range(x.shape[0]):
            x[d] *= factor * norm[d]
    for d in range(half):
        first, second = x[d], x[half + d]
        x[d] = first * cos[d] - second * sin[d]
        x[half + d] = second * cos[half + d] + first * sin[half + d]


@parallel
def _mix(queries: Floats, heads: Heads, pages: Pages, scores: Floats, sums: Floats, mixed: Floats) -> None:
    # A loop of threads takes arrays and numbers, but no tuples.
    count, scale, keys, values = heads.queries, heads.scale, pages.keys, pages.values
    past, begins, blocks, block_begins = pages.past, pages.begins, pages.blocks, pages.block_begins
    mask, mask_begins = pages.mask, pages.mask_begins
    shared = count // keys.shape[1]
    for index in prange(past.shape[0] * count):
        row, head = index // count, index % count
        first, end = begins[row], begins[row + 1]
        table = blocks[block_begins[row] : block_begins[row + 1]]
        seen = mask[mask_begins[row] : mask_begins[row + 1]] if mask_begins.size else mask[:0]
        _attended(
            *(queries[head, first:end], scale, keys, values, head // shared, table, past[row], seen),
            *(scores[head, first:end], sums[head, first:end]),
        )
        for token in range(first, end):
            mixed[token, head] = sums[head, token]


@serial
def _attended(
    queries: Floats,
    scale: np.float32,
    keys: Cached,
    values: Cached,
    kv_head: int,
    table: Ints,
    past: int,
    seen: NDArray[np.uint8],
    scores: Floats,
    sums: Floats,
) -> None:
    """All queries of a row in one head, [Q, D]: `scores` [Q, longest] is room, `sums` [Q, D] begins as zeros.

    What is cached is seen by all of them. The new tokens that a query sees are scored right behind, so that it is
    computed as it would be alone, and what is hidden is not even read.
    """
    size = keys.shape[2]
    for index in range(-(-past // size)):
        _score(keys[table[index], kv_head], min(size, past - index * size), queries, scores, index * size)
    for query in range(queries.shape[0]):
        length = past
        for new in range(queries.shape[0]):
            if _sees(seen, query, new, queries.shape[0]):
                position = past + new
                _dots_1x1(keys[table[position // size], kv_head], position % size, queries, query, scores, length)
                length += 1
        _soften(scores[query, :length], scale)
    for index in range(-(-past // size)):
        _blend(values[table[index], kv_head], min(size, past - index * size), scores, index * size, sums)
    for query in range(queries.shape[0]):
        length = past
        for new in range(queries.shape[0]):
            if _sees(seen, query, new, queries.shape[0]):
                position = past + new
                _blend_one(values[table[position // size], kv_head], position % size, 1, scores, query, length, sums)
                length += 1


@inlined
def _sees(seen: NDArray[np.uint8], query: int, new: int, count: int) -> bool:
    """Among the new tokens of a row."""
    return seen[query * count + new] != 0 if seen.size else new <= query


@inlined
def _score(keys: Cached, count: int, queries: Floats, scores: Floats, begin: int) -> None:
    """The first `count` keys of a block with all queries."""
    row = 0
    while row + 4 <= queries.shape[0]:
        for place in range(0, count - count % 2, 2):
            _dots_2x4(keys, place, queries, row, scores, begin + place)
        for place in range(count - count % 2, count):
            _dots_1x4(keys, place, queries, row, scores, begin + place)
        row += 4
    while row < queries.shape[0]:
        for place in range(0, count - count % 4, 4):
            _dots_4x1(keys, place, queries, row, scores, begin + place)
        for place in range(count - count % 4, count):
            _dots_1x1(keys, place, queries, row, scores, begin + place)
        row += 1


@inlined
def _blend(values: Cached, count: int, shares: Floats, begin: int, sums: Floats) -> None:
    """Add the first `count` values of a block to the sums of all queries."""
    row, width = 0, sums.shape[1]
    wide = width - width % _FOUR_WIDE
    while row + 4 <= sums.shape[0]:
        for d in range(0, wide, _FOUR_WIDE):
            _blend_wide_4(values, 0, count, shares, row, begin, sums, d)
        for d in range(wide, width, STEP):
            _blend_narrow_4(values, 0, count, shares, row, begin, sums, d)
        row += 4
    while row < sums.shape[0]:
        _blend_one(values, 0, count, shares, row, begin, sums)
        row += 1


@inlined
def _blend_one(values: Cached, place: int, count: int, shares: Floats, query: int, begin: int, sums: Floats) -> None:
    """Add some values of a block to a query's sum."""
    width = sums.shape[1]
    wide = width - width % _WIDE
    for d in range(0, wide, _WIDE):
        _blend_wide(values, place, count, shares, query, begin, sums, d)
    for d in range(wide, width, STEP):
        _blend_narrow(values, place, count, shares, query, begin, sums, d)


@serial
def _soften(scores: Floats, scale: np.float32) -> None:
    """Softmax of scaled scores, in place."""
    highest, total = np.float32(-np.inf), np.float32(0)
    for position in range(scores.shape[0]):
        highest = max(highest, scores[position])
    for position in range(scores.shape[0]):
        scores[position] = exp((scores[position] - highest) * scale)
        total += scores[position]
    for position in range(scores.shape[0]):
        scores[position] /= total
