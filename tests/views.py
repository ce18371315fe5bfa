"""Views of passes by hand, for tests of proposers."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.decoding.proposer import SequenceView
from trtspec.types import Request, SamplingParams


def view_row(
    tokens: Sequence[int],
    depth: int,
    nodes: int | None = None,
    *,
    sequence_id: int = 0,
    blocks: Sequence[int] = (),
    sampling: SamplingParams | None = None,
    seed: int = 0,
) -> SequenceView:
    """A row with this text that may draft so deep, and so many nodes: as many as it is deep where nothing is said."""
    request = Request(
        str(sequence_id), tuple(tokens[:1]), 1000, sampling or SamplingParams(), seed, max_draft_tokens=depth
    )
    return SequenceView(sequence_id, tokens, depth, depth if nodes is None else nodes, request, 0, blocks)
