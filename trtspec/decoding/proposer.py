"""What a proposer is, and where each method's lives.

A proposer has one verb. What happened in the last pass arrives in the view; nothing is called back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter
from trtspec.decoding.guiding import GuidedText
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method, Request

LAST_HIDDEN = -1
"""Among `Needs.features`: the normalised output of the last layer, which the output head reads."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a proposer asks of the engine; data, so that nobody has to ask which method it is."""

    max_nodes: int = 0
    """Most nodes of a row's draft."""
    tree: bool = False
    """Drafts may branch, so that a depth d may take more than d nodes."""
    features: tuple[int, ...] = ()
    """Hidden states of the target that are read, side by side: what goes into layer i, or `LAST_HIDDEN`."""
    caches: bool = False
    """It keeps a cache of its own under the target's block tables, so that blocks of a sequence that never drafts are
    of no use to one that does."""
    behind: int = 0
    """Positions by which that cache stays behind what was told of a sequence."""


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One row of the coming pass."""

    sequence_id: int
    tokens: Sequence[int]
    """Prompt and output so far, the root last. Belongs to the scheduler: read only, and only during the call."""
    max_depth: int
    """Deepest useful draft; 0 where this row must not draft."""
    max_nodes: int
    request: Request
    choice: int
    """Which of the request's outputs."""
    blocks: Sequence[int]
    """Block table over all tokens and `max_nodes` more. Belongs to the cache: read only, and only during the call. The
    object stays the same while the sequence is not computed again."""
    guided: GuidedText | None = None
    """What its guide allows; None without one. Other tokens are not submitted, whoever drafts them."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What the last pass cached for good of a sequence that goes on, whether or not it takes part in the coming one."""

    sequence_id: int
    request: Request
    tokens: Sequence[int]
    """Prompt and output so far, as in `SequenceView`."""
    start: int
    """Position of the first token that was cached."""
    count: int
    """How many were: those fed, then the accepted ones. The token after them is known, too."""
    blocks: Sequence[int]
    features: Tensor | None = None
    """[count, F]: the target's features at these positions, as the needs name them."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """All rows of the coming pass, in order, and what the last pass did."""

    rows: tuple[SequenceView, ...]
    released: tuple[int, ...] = ()
    """Sequences that ended since the last view; their ids never come back."""
    advances: tuple[Advance, ...] = ()


def among(view: BatchView, drafting: Sequence[SequenceView], draft: Draft) -> Draft:
    """A draft of some of a view's rows as one of all: the others have no node."""
    places = {row.sequence_id: place for place, row in enumerate(drafting)}
    return draft.spread([places.get(row.sequence_id) for row in view.rows])


class Proposer(Protocol):
    """Drafts tokens for the rows of a pass. It touches only what it owns."""

    @property
    def needs(self) -> Needs: ...

    def propose(self, view: BatchView) -> Draft:
        """One draft row for each view row, within its limits."""
        ...


Factory = Callable[[SpeculativeConfig, Drafter], Proposer]


def _none(config: SpeculativeConfig, drafter: Drafter) -> Proposer:
    from trtspec.decoding.proposers.none import NoProposer

    return NoProposer()


def _ngram(config: SpeculativeConfig, drafter: Drafter) -> Proposer:
    from trtspec.decoding.proposers.ngram import NgramProposer

    return NgramProposer(config.num_speculative_tokens, config.prompt_lookup_min, config.prompt_lookup_max)


def _draft_model(config: SpeculativeConfig, drafter: Drafter) -> Proposer:
    from trtspec.decoding.proposers.draft_model import DraftModelProposer

    return DraftModelProposer(config, drafter)


def _medusa(config: SpeculativeConfig, drafter: Drafter) -> Proposer:
    from trtspec.decoding.proposers.medusa import MedusaProposer

    return MedusaProposer(config, drafter)


def _stateful(config: SpeculativeConfig, drafter: Drafter) -> Proposer:
    from trtspec.decoding.proposers.stateful import StatefulProposer

    return StatefulProposer(config, drafter)


PROPOSERS: Mapping[Method, Factory] = {
    Method.NONE: _none,
    Method.NGRAM: _ngram,
    Method.DRAFT_MODEL: _draft_model,
    Method.MEDUSA: _medusa,
    Method.EAGLE: _stateful,
    Method.EAGLE3: _stateful,
    Method.MTP: _stateful,
}
"""The factory of each method; a factory imports what its method needs."""


def make_proposer(config: SpeculativeConfig, drafter: Drafter) -> Proposer:
    """The proposer of a configuration, behind prompt lookup where that comes first."""
    proposer = PROPOSERS[config.method](config, drafter)
    if not config.ngram_first:
        return proposer
    from trtspec.decoding.proposers.ngram import NgramProposer
    from trtspec.decoding.proposers.ngram_first import NgramFirst

    longest = max(config.ngram_first, config.prompt_lookup_max)
    return NgramFirst(NgramProposer(config.num_speculative_tokens, config.ngram_first, longest), proposer)
