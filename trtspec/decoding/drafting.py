"""What model-based proposers ask of their networks, and the values that go there and back.

A drafter's cache lies under the target's block tables: the slot of a position in the target's cache is that position's
slot in the drafter's. So prefixes that are found, blocks that are given back and preemption need no bookkeeping here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.kv_cache import SlotCopy


@dataclass(frozen=True, slots=True)
class DraftRow:
    """Tokens of one sequence for a drafter, as `plan.Feed` asks for them; a draft's nodes may follow."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    scored: int

    @property
    def fed(self) -> int:
        return len(self.tokens)

    @property
    def next_position(self) -> int:
        return self.start + self.fed


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """One pass of a drafter; it moves nothing: drafted positions either are in their place, or are fed again."""

    rows: tuple[DraftRow, ...]
    copies: tuple[SlotCopy, ...] = ()


class DraftOutput(NamedTuple):
    """What a drafter says after the scored places of a pass: row by row its last fed tokens, then its nodes."""

    logits: Tensor  # [S, D] float32, over the drafter's own vocabulary; valid until the next pass
    states: Tensor  # [S, H], what a token drafted after each place is fed with


class DraftNetwork(Protocol):
    """A drafter that reads tokens, and states beside them unless it is a whole model."""

    @property
    def token_ids(self) -> Tensor | None:
        """[D] int64: the target's id of each of the drafter's tokens; None where they are the same."""
        ...

    @property
    def positions(self) -> int:
        """Longest sequence; beyond, a drafter pauses."""
        ...

    def states(self, features: Tensor) -> Tensor:
        """What the target's features at some positions come to as states: [T, F] -> [T, H]."""
        ...

    def forward(self, plan: DraftPlan, draft: Draft, states: Tensor | None) -> DraftOutput:
        """Run all fed tokens and nodes; `states` is [T, H] in their order, None for a whole model."""
        ...


class HeadsNetwork(Protocol):
    """Heads that read the target's last hidden state alone: head k guesses the token k + 2 places further on."""

    @property
    def token_ids(self) -> Tensor | None: ...

    def forward(self, features: Tensor) -> Tensor:
        """[B, F] -> [B, heads, D] logits, float32."""
        ...


@dataclass(frozen=True, slots=True)
class Drafter:
    """The networks of an engine's proposer."""

    modules: tuple[DraftNetwork, ...] = ()
    """One for each depth; the last one goes on beyond its count."""
    heads: HeadsNetwork | None = None
    vocabulary_size: int = 0
    """Of the target: ids below this are emitted."""
    features: tuple[int, ...] = ()
    """What the networks read of the target, as in `Needs`."""
