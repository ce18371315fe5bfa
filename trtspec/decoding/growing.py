"""From the guesses after each row's root to its draft: a drafter is asked depth by depth, all rows at once.

It knows where roots lie and what they are fed with, not how the drafter came to know the text before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.decoding.candidates import Candidates
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import DraftNetwork, DraftOutput, DraftPlan, DraftRow
from trtspec.decoding.growth import Growth
from trtspec.decoding.processors import PlaceEdits
from trtspec.decoding.proposer import SequenceView
from trtspec.decoding.sampling import ChoiceRows
from trtspec.decoding.sending import send
from trtspec.decoding.trees import Ints, TreeShape

Guess = Callable[[Tensor, ChoiceRows], Candidates]
"""From a drafter's logits at some places to what is drafted after each."""


@dataclass(frozen=True, slots=True)
class Root:
    """Where a row's draft begins, as one module of a drafter sees it."""

    row: SequenceView
    start: int
    """The module's position of the root token."""
    state: Tensor | None
    """[H]: what the root token is fed with; None for a whole model."""


@dataclass(frozen=True, slots=True)
class Module:
    """One of a drafter's networks, with the roots of all rows that draft."""

    network: DraftNetwork
    roots: Sequence[Root]


def grow(
    modules: Sequence[Module], first: DraftOutput, shape: TreeShape, guess: Guess, min_confidence: float = 0.0
) -> Draft:
    """The drafts of all roots. `first` is what the first module says after each; depth d + 1 asks the module d."""
    rows = [root.row for root in modules[0].roots]
    growth = Growth(shape, rows, min_confidence)
    asking = (_Chain if shape.expands_chain and len(modules) == 1 else _Tree)(growth, first.states)
    found = guess(first.logits, coming_choices(rows, range(len(rows)), growth, first.logits.device))
    depth = 1
    while places := growth.add(found):
        live = growth.going.nonzero()[0]
        logits = asking.ask(modules[min(depth, len(modules) - 1)], live, fresh=depth < len(modules))
        depth += 1
        guessed = guess(logits, coming_choices(rows, live.tolist(), growth, logits.device))
        found = _spread(guessed, live, len(rows), places)
    return growth.draft()


def coming_choices(
    rows: Sequence[SequenceView], live: Sequence[int], growth: Growth, device: torch.device
) -> ChoiceRows:
    """How the target will choose after the places of each live row that are expanded next."""
    places = growth.places
    chosen = [rows[index] for index in live for _ in range(places)]
    edits: Sequence[PlaceEdits | None] = ()
    if any(row.guided for row in chosen):
        edits = [_guided(rows[index], path, device) for index in live for path in growth.paths(index)]
    return ChoiceRows(
        [row.request.sampling for row in chosen],
        [row.request.seed for row in chosen],
        [len(row.tokens) + growth.depth for row in chosen],
        [row.choice for row in chosen],
        edits,
    )


def _guided(row: SequenceView, path: Sequence[int], device: torch.device) -> PlaceEdits | None:
    """What the row's guide allows after a path, if it has one; nothing follows a path that it does not allow."""
    if row.guided is None:
        return None
    allowed = row.guided.allowed(path)
    if allowed is None:
        allowed = np.zeros(row.guided.vocabulary, np.bool_)
    return PlaceEdits.of_guide(send(torch.from_numpy(allowed), device))


class _Chain:
    """Each node is fed alone: those before it lie in the drafter's cache."""

    def __init__(self, growth: Growth, states: Tensor) -> None:
        self._growth = growth
        self._states = states.clone()  # [B, H]: what was said after the last token of each row; it is written below

    def ask(self, module: Module, live: Ints, fresh: bool) -> Tensor:
        depth, last = self._growth.expanded.shape[1], self._growth.expanded[live, -1]
        tokens = self._growth.tokens[live, last].tolist()
        roots = [module.roots[index] for index in live.tolist()]
        rows = tuple(
            DraftRow([token], root.start + depth, root.row.blocks, scored=1)
            for token, root in zip(tokens, roots, strict=True)
        )
        states = None if roots[0].state is None else self._states[live]
        output = module.network.forward(DraftPlan(rows), Draft.empty(len(rows)), states)
        self._states[live] = output.states
        return output.logits


class _Tree:
    """All expanded nodes are fed again with the root, because a cache does not tell one branch from another."""

    def __init__(self, growth: Growth, states: Tensor) -> None:
        self._growth = growth
        self._said = states.unsqueeze(1)  # [B, 1 + m, H]: what was said after the root and each expanded node
        self._fed = states.new_zeros(len(states), 0, states.shape[1])  # [B, m, H]: what each expanded node is fed with

    def ask(self, module: Module, live: Ints, fresh: bool) -> Tensor:
        """Logits after the nodes that were expanded last, [L * E, D]. A fresh module has fed no node yet."""
        known, places = self._fed.shape[1], self._growth.expanded.shape[1]
        draft = self._growth.expanded_draft(live)
        above = self._growth.expanded_draft(np.arange(len(self._said))).parents + 1
        above = above.to(self._said.device)
        parents = self._said.gather(1, above.unsqueeze(2).expand(-1, -1, self._said.shape[2]))
        self._fed = parents if fresh else torch.cat([self._fed, parents[:, known:]], 1)
        roots = [module.roots[index] for index in live.tolist()]
        rows = tuple(DraftRow(root.row.tokens[-1:], root.start, root.row.blocks, scored=1) for root in roots)
        output = module.network.forward(DraftPlan(rows), draft, self._states(roots, live))
        said = self._said.new_zeros(len(self._said), 1 + places, self._said.shape[2])
        said[live] = output.states.view(len(live), 1 + places, -1)
        self._said = said
        return output.logits.view(len(live), 1 + places, -1)[:, 1 + known :].flatten(0, 1)

    def _states(self, roots: Sequence[Root], live: Ints) -> Tensor | None:
        """[L * (1 + m), H]: what the roots and their nodes are fed with."""
        known = [root.state for root in roots if root.state is not None]
        if not known:
            return None
        return torch.cat([torch.stack(known).unsqueeze(1), self._fed[live]], 1).flatten(0, 1)


def _spread(found: Candidates, live: Ints, rows: int, places: int) -> Candidates:
    """Guesses of live rows among those of all, where the others have none."""
    if len(live) == rows:
        return found
    width = found.tokens.shape[1]
    tokens = found.tokens.new_zeros(rows, places, width)
    logprobs = found.logprobs.new_full((rows, places, width), -math.inf)
    tokens[live] = found.tokens.view(len(live), places, width)
    logprobs[live] = found.logprobs.view(len(live), places, width)
    probs = None
    if found.probs is not None:
        probs = found.probs.new_zeros(rows, found.probs.shape[1])
        probs[send(torch.from_numpy(live), probs.device)] = found.probs
    return Candidates(tokens.flatten(0, 1), logprobs.flatten(0, 1), probs)
