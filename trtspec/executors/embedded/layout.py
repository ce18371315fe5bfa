"""Where the tokens of a pass lie: flat order, positions, cache slots, and who sees whom.

Pure index work, done once a pass and used by every layer. What a row brings is small and made on the host; what grows
with its context is made from that on the device. Flat order is by plan row: fed tokens, then draft nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.draft import ROOT, Draft, ancestors, depths
from trtspec.decoding.plan import Feed, Pass

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowPart:
    """What one plan row brings: Q new tokens after `start` cached ones."""

    token_ids: Ints  # [Q]
    positions: Ints  # [Q]
    slots: Ints  # [Q]: where each token's key and value go
    seen: Bools  # [Q, Q]: which of the new tokens each of them sees, itself included
    blocks: Ints  # [N]: the block table over cached and new tokens
    start: int
    scored: int
    """The last so many new tokens get logits."""

    @property
    def size(self) -> int:
        return len(self.token_ids)

    @property
    def length(self) -> int:
        """Cached and new tokens."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows padded to one shape; all that their attention is made from."""

    starts: Tensor  # [B]: cached tokens
    lengths: Tensor  # [B]: cached and new tokens
    seen: Tensor  # [B, Q, Q] bool; a padding query sees what its row's last one sees
    blocks: Tensor  # [B, N]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows whose attention is computed together, padded to one shape."""

    queries: Tensor  # [B, Q] int64: flat index of each query; padding repeats a query of the same row
    context: Tensor  # [B, C] int64: slots, in order of position, nodes last; padding repeats a slot of the same row
    visible: Tensor  # [B, 1, Q, C] bool


@dataclass(frozen=True, slots=True)
class PassLayout:
    """Everything about a pass that does not depend on weights."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    scored: Tensor  # [S]: flat indices of the places that get logits
    groups: tuple[AttentionGroup, ...]


def row_parts(plan: Pass, draft: Draft, block_tokens: int) -> list[RowPart]:
    """What each plan row brings; tensors of a draft are on the CPU."""
    tokens, parents, counts = draft.tokens.numpy(), draft.parents.tolist(), draft.counts.tolist()
    chained = all(above[:count] == list(range(ROOT, count - 1)) for above, count in zip(parents, counts, strict=True))
    # A batch of chains, which most are, needs neither of the two.
    deep, seen = (None, None) if chained else (depths(draft).numpy(), ancestors(draft).numpy())
    parts = []
    for i, (row, count) in enumerate(zip(plan.rows, counts, strict=True)):
        part = _chain(row, tokens[i, :count], block_tokens)
        if deep is not None and seen is not None:
            part.positions[row.fed :] = row.next_position - 1 + deep[i, :count]
            part.seen[row.fed :, row.fed :] = seen[i, :count, :count]
        parts.append(part)
    return parts


def scored_places(parts: Sequence[RowPart], starts: Sequence[int]) -> Ints:
    """Flat indices of the places that get logits, [S], where each row's tokens start at the given index."""
    ends = [start + part.size for part, start in zip(parts, starts, strict=True)]
    return np.concatenate([np.arange(end - part.scored, end) for part, end in zip(parts, ends, strict=True)])


def stack(parts: Sequence[RowPart], queries: int, blocks: int) -> RowTable:
    """Pad rows to so many queries and blocks; on the CPU."""
    seen = np.zeros((len(parts), queries, queries), np.bool_)
    table = np.zeros((len(parts), blocks), np.int64)
    for i, part in enumerate(parts):
        seen[i, : part.size, : part.size] = part.seen
        seen[i, part.size :, : part.size] = part.seen[-1]
        table[i, : len(part.blocks)] = part.blocks
    return RowTable(
        starts=torch.tensor([part.start for part in parts]),
        lengths=torch.tensor([part.length for part in parts]),
        seen=torch.from_numpy(seen),
        blocks=torch.from_numpy(table),
    )


def attention_group(queries: Tensor, rows: RowTable, block_tokens: int, context: int) -> AttentionGroup:
    """The attention of some rows over so many places of context, made where the row table is.

    Only slots that a row has written are read, because a masked NaN would still spread.
    """
    starts, lengths = rows.starts.unsqueeze(1), rows.lengths.unsqueeze(1)
    places = torch.arange(context, device=rows.starts.device).unsqueeze(0)
    read = places.minimum(lengths - 1)
    new = read - starts
    seen = rows.seen.gather(2, new.clamp(min=0).unsqueeze(1).expand(-1, queries.shape[1], -1))
    visible = (places < lengths).unsqueeze(1) & ((new < 0).unsqueeze(1) | seen)
    slots = rows.blocks.gather(1, read // block_tokens) * block_tokens + read % block_tokens
    return AttentionGroup(queries, slots, visible.unsqueeze(1))


def lay_out(parts: Sequence[RowPart], block_tokens: int, device: torch.device) -> PassLayout:
    """The layout of a pass as it is: no token is padded, only attention is."""
    starts = np.cumsum([0, *(part.size for part in parts)])[:-1].tolist()
    flat = (
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.slots for part in parts]),
        scored_places(parts, starts),
    )
    token_ids, positions, slots, scored = (_on(torch.from_numpy(item), device) for item in flat)
    groups = tuple(_group(members, block_tokens, device) for members in _similar(parts, starts))
    return PassLayout(token_ids, positions, slots, scored, groups)


def _chain(row: Feed, nodes: Ints, block_tokens: int) -> RowPart:
    """A row whose nodes follow each other."""
    positions = np.arange(row.start, row.next_position + len(nodes))
    blocks = np.array(row.blocks[: positions[-1] // block_tokens + 1], np.int64)
    return RowPart(
        token_ids=np.concatenate([np.array(row.tokens, np.int64), nodes]),
        positions=positions,
        slots=blocks[positions // block_tokens] * block_tokens + positions % block_tokens,
        seen=np.tri(len(positions), dtype=np.bool_),
        blocks=blocks,
        start=row.start,
        scored=row.scored + len(nodes),
    )


def _similar(parts: Sequence[RowPart], starts: Sequence[int]) -> list[list[tuple[RowPart, int]]]:
    """Rows to pad together: of similar length in queries and in context, so that padding at most doubles either."""
    groups: dict[tuple[int, int], list[tuple[RowPart, int]]] = defaultdict(list)
    for part, start in zip(parts, starts, strict=True):
        groups[part.size.bit_length(), part.length.bit_length()].append((part, start))
    return list(groups.values())


def _group(members: Sequence[tuple[RowPart, int]], block_tokens: int, device: torch.device) -> AttentionGroup:
    parts = [part for part, _ in members]
    queries = max(part.size for part in parts)
    table = stack(parts, queries, max(len(part.blocks) for part in parts))
    index = np.stack([start + np.minimum(np.arange(queries), part.size - 1) for part, start in members])
    rows = RowTable(*(_on(item, device) for item in (table.starts, table.lengths, table.seen, table.blocks)))
    context = max(part.length for part in parts)
    return attention_group(_on(torch.from_numpy(index), device), rows, block_tokens, context)


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for what runs there."""
    return tensor.to(device, non_blocking=True)
