"""Two proposers in one: prompt lookup where it has a match that is long enough, else the drafter, row by row."""

from __future__ import annotations

from dataclasses import replace

from trtspec.decoding.draft import Draft, merged
from trtspec.decoding.proposer import BatchView, Needs, Proposer


class NgramFirst:
    """Drafts what `lookup` finds, and what `drafter` proposes for rows where it finds nothing."""

    def __init__(self, lookup: Proposer, drafter: Proposer) -> None:
        self._lookup = lookup
        self._drafter = drafter
        nodes = max(lookup.needs.max_nodes, drafter.needs.max_nodes)
        self.needs: Needs = replace(drafter.needs, max_nodes=nodes)

    def propose(self, view: BatchView) -> Draft:
        """The drafter sees all rows, so that it keeps up; those with a match want no draft of it."""
        found = self._lookup.propose(view)
        matched = found.counts > 0
        rows = tuple(
            replace(row, max_depth=0, max_nodes=0) if match else row
            for row, match in zip(view.rows, matched.tolist(), strict=True)
        )
        return merged(found, self._drafter.propose(replace(view, rows=rows)), matched)
