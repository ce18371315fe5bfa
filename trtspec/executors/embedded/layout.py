"""Where the tokens of a pass lie: flat order, positions, cache slots, and who sees whom.

Pure index work, done once a pass and used by every layer. Flat order is by plan row: fed tokens, then draft nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.decoding.draft import Draft, ancestors, depths
from trtspec.decoding.plan import PlanRow, StepPlan


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows whose attention is computed together, padded to one shape."""

    queries: Tensor  # [B, Q] int64: flat index of each query; padding repeats a query of the same row
    context: Tensor  # [B, C] int64: slots, in order of position, nodes last; padding repeats a slot
    visible: Tensor  # [B, 1, Q, C] bool


@dataclass(frozen=True, slots=True)
class PassLayout:
    """Everything about a pass that does not depend on weights."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T]: where each token's key and value go
    scored: Tensor  # [S]: flat indices of the places that get logits
    groups: tuple[AttentionGroup, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """One plan row's part of the layout; tensors on the CPU."""

    token_ids: Tensor  # [Q]
    positions: Tensor  # [Q]
    context: Tensor  # [C]
    visible: Tensor  # [Q, C]
    fed: int
    scored: int

    @property
    def size(self) -> int:
        return len(self.token_ids)


def lay_out(plan: StepPlan, draft: Draft, block_tokens: int, device: torch.device) -> PassLayout:
    """The layout of a pass."""
    deep, seen, counts = depths(draft), ancestors(draft), draft.counts.tolist()
    rows = [
        _row(row, draft.tokens[i, : counts[i]], deep[i, : counts[i]], seen[i, : counts[i], : counts[i]], block_tokens)
        for i, row in enumerate(plan.rows)
    ]
    starts = torch.tensor([0, *(row.size for row in rows)]).cumsum(0).tolist()
    flat = torch.arange(starts[-1])
    scored = [flat[start + row.fed - row.scored : start + row.size] for row, start in zip(rows, starts, strict=False)]
    return PassLayout(
        token_ids=torch.cat([row.token_ids for row in rows]).to(device),
        positions=torch.cat([row.positions for row in rows]).to(device),
        slots=torch.cat([row.context[-row.size :] for row in rows]).to(device),
        scored=torch.cat(scored).to(device),
        groups=tuple(_group(members, device) for members in _similar(rows, starts)),
    )


def _row(row: PlanRow, nodes: Tensor, deep: Tensor, seen: Tensor, block_tokens: int) -> _Row:
    fed = torch.arange(row.start, row.next_position)
    length = row.next_position + len(nodes)
    slots = (torch.tensor(row.blocks).unsqueeze(1) * block_tokens + torch.arange(block_tokens)).flatten()
    visible = torch.zeros(row.fed + len(nodes), length, dtype=torch.bool)
    visible[: row.fed] = torch.arange(length) <= fed.unsqueeze(1)
    visible[row.fed :, : row.next_position] = True
    visible[row.fed :, row.next_position :] = seen
    return _Row(
        token_ids=torch.cat([torch.tensor(row.tokens), nodes]),
        positions=torch.cat([fed, row.next_position - 1 + deep]),
        context=slots[:length],
        visible=visible,
        fed=row.fed,
        scored=row.scored,
    )


def _similar(rows: Sequence[_Row], starts: Sequence[int]) -> list[list[tuple[_Row, int]]]:
    """Rows to pad together: of similar length in queries and in context, so that padding at most doubles either."""
    groups: dict[tuple[int, int], list[tuple[_Row, int]]] = defaultdict(list)
    for row, start in zip(rows, starts, strict=False):
        groups[row.size.bit_length(), len(row.context).bit_length()].append((row, start))
    return list(groups.values())


def _group(members: Sequence[tuple[_Row, int]], device: torch.device) -> AttentionGroup:
    queries = max(row.size for row, _ in members)
    length = max(len(row.context) for row, _ in members)
    index = torch.stack([start + torch.arange(queries).clamp(max=row.size - 1) for row, start in members])
    context = torch.stack([row.context[torch.arange(length).clamp(max=len(row.context) - 1)] for row, _ in members])
    visible = torch.zeros(len(members), 1, queries, length, dtype=torch.bool)
    for i, (row, _) in enumerate(members):
        visible[i, 0, : row.size, : len(row.context)] = row.visible
        visible[i, 0, row.size :, : len(row.context)] = row.visible[-1]
    return AttentionGroup(index.to(device), context.to(device), visible.to(device))
