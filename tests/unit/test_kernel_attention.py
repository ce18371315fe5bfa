"""Attention of few new tokens over a paged cache, against the sums written out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trtspec.executors.embedded.kernels.attention import Heads, PagedTokens, Rotation, attend
from trtspec.executors.embedded.kernels.products import NONE, padded

HEADS, KV_HEADS, BLOCK = 6, 2, 32
Floats = NDArray[np.float32]


@dataclass
class Batch:
    """Rows with so many cached tokens and so many new ones, over shuffled blocks; masks by row, None for causal."""

    past: list[int]
    new: list[int]
    masks: list[NDArray[np.uint8] | None]
    width: int
    half: bool = False
    """The cache holds bfloat16."""

    def __post_init__(self) -> None:
        draws = np.random.default_rng(self.width)
        counts = [-(-(past + new) // BLOCK) for past, new in zip(self.past, self.new, strict=True)]
        self.tables = np.split(draws.permutation(sum(counts)).astype(np.int32), np.cumsum(counts)[:-1])
        self.pool = draws.standard_normal((1, 2, sum(counts), KV_HEADS, BLOCK, self.width)).astype(np.float32)
        if self.half:
            self.pool = torch.from_numpy(self.pool).bfloat16().view(torch.uint16).numpy()
        self.stacked = draws.standard_normal((sum(self.new), HEADS + 2 * KV_HEADS, self.width)).astype(np.float32)

    def run(self) -> Floats:
        """[T, heads, D], with heads that are not turned."""
        tokens = sum(self.new)
        masked = any(mask is not None for mask in self.masks)
        parts = [np.zeros(0, np.uint8) if mask is None else mask.ravel() for mask in self.masks]
        pages = PagedTokens(
            pool=self.pool,
            past=np.array(self.past, np.int32),
            begins=np.cumsum([0, *self.new]).astype(np.int32),
            blocks=np.concatenate(self.tables),
            block_begins=np.cumsum([0, *map(len, self.tables)]).astype(np.int32),
            mask=np.concatenate(parts),
            mask_begins=np.cumsum([0, *map(len, parts)] if masked else []).astype(np.int32),
        )
        rows = np.zeros((padded(tokens), self.stacked[0].size), np.float32)
        rows[:tokens] = self.stacked.reshape(tokens, -1)
        turn = Rotation(np.ones((tokens, self.width), np.float32), np.zeros((tokens, self.width), np.float32))
        heads = Heads(HEADS, np.float32(1 / math.sqrt(self.width)), NONE, NONE, np.float32(1e-5))
        return attend(rows, heads, turn, pages.of(0)).reshape(-1, HEADS, self.width)[:tokens]

    def expected(self) -> Floats:
        """After `run`, which stores the new keys and values."""
        found = np.zeros((sum(self.new), HEADS, self.width))
        pool = torch.from_numpy(self.pool)
        held = (pool.view(torch.bfloat16) if self.half else pool)[0].double().numpy()
        token = 0
        for past, new, mask, table in zip(self.past, self.new, self.masks, self.tables, strict=True):
            seen = np.tri(new) if mask is None else mask
            places = np.arange(past + new)
            cached = held[:, table[places // BLOCK], :, places % BLOCK]  # [P, 2, KV, D]
            for query in range(new):
                visible = np.concatenate([np.ones(past), seen[query]]).astype(bool)
                for head in range(HEADS):
                    keys, values = cached[visible, :, head * KV_HEADS // HEADS].swapaxes(0, 1)
                    weights = np.exp(keys @ self.stacked[token, head] / math.sqrt(self.width))
                    found[token, head] = weights @ values / weights.sum()
                token += 1
        return found.astype(np.float32)


TREE = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], np.uint8)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("width", [8, 64, 72, 128])
def test_attention_is_the_softmax_over_what_each_token_sees(width: int, half: bool) -> None:
    batch = Batch([0, 31, 70, 200], [1, 4, 3, 4], [None, TREE, None, None], width, half)
    found = batch.run()
    np.testing.assert_allclose(found, batch.expected(), atol=1e-5, rtol=1e-4)


LARGE = np.tril(np.ones((9, 9), np.uint8))
LARGE[3:, 2] = LARGE[6:, 4] = LARGE[8, 5:8] = 0  # 0, 1, then 2 or 3, and so on


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("width", [24, 64, 72])
@pytest.mark.parametrize(
    ("mask", "paths"),
    [
        (TREE, ([0], [0, 1], [0, 2], [0, 1, 3])),
        (LARGE, ([0, 1, 2], [0, 1, 3], [0, 1, 3, 4, 5], [0, 1, 3, 5, 6, 7], [0, 1, 3, 8])),
    ],
    ids=["4", "9"],
)
def test_a_node_of_a_tree_is_computed_as_the_same_text_alone_bit_by_bit(
    mask: NDArray[np.uint8], paths: list[list[int]], width: int, half: bool
) -> None:
    tree = Batch([45], [len(mask)], [mask], width, half)
    found = tree.run()
    for path in paths:
        assert np.flatnonzero(mask[path[-1]]).tolist() == path
        alone = Batch([45 + len(path) - 1], [1], [None], width, half)
        alone.tables, alone.stacked = tree.tables, tree.stacked[path[-1:]]
        alone.pool = tree.pool.copy()
        for place, node in enumerate(path[:-1]):
            source, target = (divmod(45 + item, BLOCK) for item in (node, place))
            table = tree.tables[0]
            alone.pool[0][:, table[target[0]], :, target[1]] = tree.pool[0][:, table[source[0]], :, source[1]]
        assert (alone.run()[0] == found[path[-1]]).all()


@pytest.mark.parametrize("value", [1.0, -1.00390625, 1.01171875, 3.4e38, 1e-40, math.inf, -math.inf, math.nan])
def test_a_new_value_is_cached_as_the_nearest_bfloat16(value: float) -> None:
    batch = Batch([5], [1], [None], 8, half=True)
    batch.stacked[0, HEADS:] = value
    batch.run()
    held = torch.from_numpy(batch.pool[0][1, batch.tables[0][0], :, 5]).view(torch.bfloat16)
    expected = torch.tensor(value, dtype=torch.float32).bfloat16()
    torch.testing.assert_close(held, expected.expand(held.shape), rtol=0, atol=0, equal_nan=True)


def test_what_is_hidden_is_not_read() -> None:
    batch = Batch([40], [4], [TREE], 64)
    batch.stacked[2, HEADS:] = np.nan  # key and value of a node that only itself sees
    found = batch.run()
    assert np.isfinite(found[[0, 1, 3]]).all() and np.isnan(found[2]).all()
