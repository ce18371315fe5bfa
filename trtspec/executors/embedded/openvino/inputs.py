"""One pass as the arrays that the graph reads. Pure index work; knows the plan, not the model.

Flat order is by plan row: fed tokens, then draft nodes, which take the positions after them in the cache. A row whose
nodes do not form a chain brings a mask over its own new tokens; without one its attention is causal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtspec.decoding.draft import ROOT, Draft, place_depths
from trtspec.decoding.plan import Feed, Pass
from trtspec.executors.embedded.openvino import graph

Inputs = dict[str, NDArray[np.generic]]
_CAUSAL = np.zeros(0, np.uint8)


class _Row(NamedTuple):
    """One plan row's share of the pass."""

    token_ids: list[int]
    positions: list[int]
    blocks: Sequence[int]
    scored: int
    """So many of its last places get logits."""
    mask: NDArray[np.uint8]
    """Who sees whom among its new tokens, [Q * Q]; empty where attention is causal."""


def pass_inputs(plan: Pass, draft: Draft, block_tokens: int) -> Inputs:
    """All inputs but the caches."""
    drafted = zip(draft.tokens.tolist(), draft.parents.tolist(), draft.counts.tolist(), strict=True)
    rows = [
        _row(row, tokens[:count], parents[:count], block_tokens)
        for row, (tokens, parents, count) in zip(plan.rows, drafted, strict=True)
    ]
    queries = [len(row.token_ids) for row in rows]
    begins = _begins(queries)
    masked = any(row.mask.size for row in rows)
    return {
        graph.TOKEN_IDS: _joined(row.token_ids for row in rows),
        graph.POSITIONS: _joined(row.positions for row in rows),
        graph.SCORED: _joined(range(end - row.scored, end) for row, end in zip(rows, begins[1:].tolist(), strict=True)),
        graph.PAST_LENGTHS: np.array([row.start for row in plan.rows], np.int32),
        graph.QUERY_BEGINS: begins,
        graph.BLOCKS: _joined(row.blocks for row in rows),
        graph.BLOCK_BEGINS: _begins([len(row.blocks) for row in rows]),
        graph.LONGEST: np.array(max(row.start + new for row, new in zip(plan.rows, queries, strict=True)), np.int32),
        graph.TREE_MASK: np.concatenate([row.mask for row in rows]),
        graph.TREE_MASK_BEGINS: _begins([row.mask.size for row in rows] if masked else [])[: None if masked else 0],
    }


def _row(row: Feed, nodes: list[int], parents: list[int], block_tokens: int) -> _Row:
    root = row.next_position - 1
    used = -(-(row.next_position + len(nodes)) // block_tokens)
    is_chain = parents == list(range(ROOT, len(parents) - 1))
    return _Row(
        token_ids=[*row.tokens, *nodes],
        positions=[*range(row.start, root), *(root + depth for depth in place_depths(parents))],
        blocks=row.blocks[:used],
        scored=row.scored + len(nodes),
        mask=_CAUSAL if is_chain else _mask(row.fed, parents),
    )


def _mask(fed: int, parents: Sequence[int]) -> NDArray[np.uint8]:
    """Fed tokens see those before them; a node sees all fed ones, its ancestors and itself."""
    size = fed + len(parents)
    seen = np.tri(size, dtype=np.uint8)
    seen[fed:, fed:] = 0
    for node, parent in enumerate(parents, fed):
        if parent != ROOT:
            seen[node] = seen[fed + parent]
        seen[node, node] = 1
    return seen.ravel()


def _joined(parts: Iterable[Iterable[int]]) -> NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(parts), np.int32)


def _begins(sizes: Sequence[int]) -> NDArray[np.int32]:
    """Where each part starts, and where the last one ends."""
    return np.fromiter(accumulate(sizes, initial=0), np.int32)
