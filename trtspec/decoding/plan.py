"""The values of one pass: what is fed, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.guiding import GuidedText
from trtspec.decoding.kv_cache import SlotCopy
from trtspec.decoding.proposer import Advance, BatchView, SequenceView
from trtspec.types import Request


class Feed(Protocol):
    """One row of tokens for a runner, be it of target or drafter: known tokens, after which nodes may follow."""

    @property
    def tokens(self) -> Sequence[int]:
        """The fed tokens."""
        ...

    @property
    def start(self) -> int:
        """Position of the first one, in the cache and for its rotation."""
        ...

    @property
    def fed(self) -> int: ...

    @property
    def next_position(self) -> int: ...

    @property
    def scored(self) -> int:
        """The last so many fed tokens get logits; nodes always do."""
        ...

    @property
    def blocks(self) -> Sequence[int]: ...


class Pass(Protocol):
    """What a runner reads of a plan."""

    @property
    def rows(self) -> Sequence[Feed]: ...

    @property
    def copies(self) -> Sequence[SlotCopy]: ...


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One sequence's part of a pass: known tokens that are not cached yet, then its draft."""

    sequence_id: int
    request: Request
    history: Sequence[int]
    """Prompt and output so far. Belongs to the scheduler: read only, and only during the pass."""
    start: int
    """Positions already in the cache; the first fed token has this position."""
    fed: int
    """Known tokens fed, at least 1."""
    samples: bool
    """A token is chosen after the last fed one; false for a prefill chunk that is not the last."""
    prefill: bool
    """The token chosen here is the first of its output."""
    max_depth: int
    max_nodes: int
    blocks: Sequence[int]
    """Block table over cached, fed and draft positions. Belongs to the cache, as `history` does to the scheduler."""
    choice: int
    """Which of the request's n outputs."""
    scored: int
    """The last so many fed tokens get logits: 1 where a token is chosen after the last, else 0; all of them where
    log-probabilities of the prompt are wanted."""

    @property
    def tokens(self) -> Sequence[int]:
        """The fed tokens."""
        return self.history[self.start : self.start + self.fed]

    @property
    def next_position(self) -> int:
        """Position of the token that is chosen after the last fed one."""
        return self.start + self.fed


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One pass over all sequences that take part in it."""

    pass_index: int
    rows: tuple[PlanRow, ...]
    copies: tuple[SlotCopy, ...] = ()
    """Moves left by the last pass; they come before everything else."""
    released: tuple[int, ...] = ()
    advances: tuple[Advance, ...] = ()

    def view(self, guided: Sequence[GuidedText | None] = ()) -> BatchView:
        """What the proposer sees; `guided` is one for each row, or nothing at all."""
        rows = tuple(
            SequenceView(
                sequence_id=row.sequence_id,
                tokens=row.history,
                max_depth=row.max_depth,
                max_nodes=row.max_nodes,
                request=row.request,
                choice=row.choice,
                blocks=row.blocks,
                guided=text,
            )
            for row, text in zip(self.rows, guided or [None] * len(self.rows), strict=True)
        )
        return BatchView(rows, self.released, self.advances)


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What the target says after the scored places of a pass.

    Rows of `logits` go by plan row: first its last `scored` fed tokens, then its draft's nodes.
    """

    logits: Tensor  # [S, V], V cut to the ids that may be emitted
    features: Tensor | None = None
    """[T, F] of all places, scored or not, row by row its fed tokens and its nodes; None where nobody needs any."""


def roots(plan: Pass, draft: Draft) -> Tensor:
    """The logits row of each plan row's last fed token, [B]: scored tokens end there, nodes follow.

    Means nothing for a row without scored tokens.
    """
    scored = torch.tensor([row.scored for row in plan.rows])
    return (scored + draft.counts).cumsum(0) - draft.counts - 1


class Runner(Protocol):
    """The only seam that touches weights."""

    def forward(self, plan: Pass, draft: Draft) -> TargetOutput:
        """Apply the plan's copies, then run all fed tokens and draft nodes of all rows in one pass."""
        ...
