"""Rotary attention of few new tokens over a paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from trtspec.executors.embedded.kernels.compiling import parallel, serial
from trtspec.executors.embedded.kernels.exponential import exp
from trtspec.executors.embedded.kernels.products import Floats

Ints = NDArray[np.int32]


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

    keys: Floats  # [blocks, kv_heads, block_tokens, D]
    values: Floats
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

    pool: Floats  # [layers, 2, blocks, kv_heads, block_tokens, D]: keys and values
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
    width = pages.keys.shape[3]
    parts = stacked.reshape(stacked.shape[0], -1, width)
    mixed = np.zeros((stacked.shape[0], heads.queries, width), np.float32)
    scores = np.empty((pages.rows.shape[0] * heads.queries, pages.longest), np.float32)
    _store(parts, heads, rotation, pages)
    _mix(parts, heads, pages, scores, mixed)
    return mixed.reshape(stacked.shape[0], -1)


@serial
def _store(stacked: Floats, heads: Heads, rotation: Rotation, pages: Pages) -> None:
    kv_heads, size = pages.keys.shape[1], pages.keys.shape[2]
    for token in range(pages.rows.shape[0]):
        cos, sin = rotation.cos[token], rotation.sin[token]
        for head in range(heads.queries):
            _turn(stacked[token, head], heads.query_norm, heads.epsilon, cos, sin)
        row = pages.rows[token]
        position = pages.past[row] + token - pages.begins[row]
        block, place = pages.blocks[pages.block_begins[row] + position // size], position % size
        for head in range(kv_heads):
            _turn(stacked[token, heads.queries + head], heads.key_norm, heads.epsilon, cos, sin)
            pages.keys[block, head, place] = stacked[token, heads.queries + head]
            pages.values[block, head, place] = stacked[token, heads.queries + kv_heads + head]


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
def _mix(queries: Floats, heads: Heads, pages: Pages, scores: Floats, mixed: Floats) -> None:
    # A loop of threads takes arrays and numbers, but no tuples.
    count, scale, keys, values = heads.queries, heads.scale, pages.keys, pages.values
    rows, past, begins, blocks = pages.rows, pages.past, pages.begins, pages.blocks
    block_begins, mask, mask_begins = pages.block_begins, pages.mask, pages.mask_begins
    shared = count // keys.shape[1]
    for index in prange(rows.shape[0] * count):
        token, head = index // count, index % count
        row = rows[token]
        first, new = begins[row], begins[row + 1] - begins[row]
        table = blocks[block_begins[row] : block_begins[row + 1]]
        seen = mask[:0]
        if mask_begins.size and mask_begins[row + 1] > mask_begins[row]:
            begin = mask_begins[row] + (token - first) * new
            seen = mask[begin : begin + new]
        length = past[row] + (new if seen.size else token - first + 1)
        _attended(
            *(queries[token, head], scale, keys, values, head // shared, table, past[row], length, seen),
            *(scores[index], mixed[token, head]),
        )


@serial
def _attended(
    query: Floats,
    scale: np.float32,
    keys: Floats,
    values: Floats,
    kv_head: int,
    table: Ints,
    past: int,
    length: int,
    seen: NDArray[np.uint8],
    scores: Floats,
    mixed: Floats,
) -> None:
    """One query of one head: `scores` is room for as many positions as it looks at."""
    size, width = keys.shape[2], query.shape[0]
    highest = np.float32(-np.inf)
    for index in range(-(-length // size)):
        block, begin = table[index], index * size
        for place in range(min(size, length - begin)):
            score = np.float32(0)
            for d in range(width):
                score += query[d] * keys[block, kv_head, place, d]
            scores[begin + place] = score * scale
    for position in range(past, past + seen.size):
        if seen[position - past] == 0:
            scores[position] = np.float32(-np.inf)
    for position in range(length):
        highest = max(highest, scores[position])
    total = np.float32(0)
    for position in range(length):
        scores[position] = exp(scores[position] - highest)
        total += scores[position]
    for position in range(past, past + seen.size):
        if seen[position - past] == 0:
            scores[position] = np.float32(0)
    for index in range(-(-length // size)):
        block, begin = table[index], index * size
        for place in range(min(size, length - begin)):
            share = scores[begin + place] / total
            if share != 0:  # what is hidden is not read; what is no number spoils all
                for d in range(width):
                    mixed[d] += share * values[block, kv_head, place, d]
