"""Plain decoding: a proposer that drafts nothing, so that the baseline takes the same path as speculation."""

from __future__ import annotations

from trtspec.decoding.draft import Draft
from trtspec.decoding.proposer import BatchView, Needs


class NoProposer:
    """Zero nodes for every row."""

    needs = Needs()

    def propose(self, view: BatchView) -> Draft:
        return Draft.empty(len(view.rows))
