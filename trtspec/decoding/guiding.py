"""Texts under a guide: which tokens may follow at each place of a draft, and where a text is complete.

A matcher stands where the committed text ends, and grows by what was committed. Paths of drafts are tried and taken
back, so that what was drafted leaves nothing behind. It does not know what guides are written in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.draft import ROOT, Draft
from trtspec.errors import Unsupported
from trtspec.guides import Guide
from trtspec.types import Request

Bools = NDArray[np.bool_]


class Matcher(Protocol):
    """Reads a text token by token, and can take tokens back."""

    @property
    def vocabulary(self) -> int:
        """V: tokens are below."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that mean the end of the text; they may follow where it is complete."""
        ...

    @property
    def complete(self) -> bool:
        """The text so far is one of the language, whether or not it may go on."""
        ...

    def accept(self, token: int) -> bool:
        """Take a token; False, and nothing changes, where it must not follow."""
        ...

    def rollback(self, count: int) -> None:
        """Take back so many tokens."""
        ...

    def allowed(self) -> Bools:
        """[V]: which tokens may follow; a new array each time."""
        ...


class OpenGuide(Guide):
    """A guide that is compiled for the tokens of an engine."""

    __slots__ = ()

    @abstractmethod
    def matcher(self) -> Matcher:
        """At the beginning of a text."""


def check_open(guide: Guide | None) -> None:
    """Refuse a guide that nothing compiled: it came past what opens engines."""
    if guide is not None and not isinstance(guide, OpenGuide):
        reason = "nothing compiled it for this engine; open the engine with `open_executor`"
        raise Unsupported(f"{guide.field} is set, and {reason}", field=guide.field, feature="guided_decoding")


class GuidedText:
    """The output of one sequence."""

    def __init__(self, request: Request) -> None:
        if not isinstance(request.guide, OpenGuide):
            raise TypeError(f"the guide of request {request.request_id!r} was not compiled")
        self.matcher = request.guide.matcher()
        self.vocabulary = self.matcher.vocabulary
        self._prompt = len(request.prompt)
        self._length = 0
        self._ends = bool(self.matcher.end_ids & request.end_ids)
        self._barred = self.matcher.end_ids - request.end_ids

    def follow(self, history: Sequence[int]) -> None:
        """Read what the history holds since the last call."""
        for token in history[self._prompt + self._length :]:
            if not self._accept(token):
                raise ValueError(f"token {token} was committed, and the guide does not allow it")
            self._length += 1

    def allowed(self, path: Sequence[int]) -> Bools | None:
        """[V]: which tokens may follow a path; None where the path itself must not be."""
        taken = self._take(path)
        found = self._here() if taken == len(path) else None
        self.matcher.rollback(taken)
        return found

    def conforming(self, tokens: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Which nodes of a draft may be, each with all nodes above it."""
        paths: list[tuple[int, ...] | None] = [()]
        for token, parent in zip(tokens, parents, strict=True):
            above = paths[parent + 1]
            path = None if above is None else (*above, token)
            taken = 0 if path is None else self._take(path)
            self.matcher.rollback(taken)
            paths.append(path if path is not None and taken == len(path) else None)
        return [path is not None for path in paths[1:]]

    def completed(self, emitted: Sequence[int]) -> int | None:
        """How many of these tokens make the text complete where nothing may follow and no token says so."""
        if self._ends:
            return None
        for count in range(1, len(emitted) + 1):
            taken = self._take(emitted[:count])
            over = taken == count and self.matcher.complete and not self._here().any()
            self.matcher.rollback(taken)
            if over or taken < count:
                return count if over else None
        return None

    def _here(self) -> Bools:
        found = self.matcher.allowed()
        found[[token for token in self._barred if token < self.vocabulary]] = False
        return found

    def _take(self, path: Sequence[int]) -> int:
        """Accept a path as far as it goes; returns how far."""
        for count, token in enumerate(path):
            if not self._accept(token):
                return count
        return len(path)

    def _accept(self, token: int) -> bool:
        return token not in self._barred and self.matcher.accept(token)


def prune(draft: Draft, texts: Sequence[GuidedText | None]) -> Draft:
    """A draft without the nodes that its rows' guides would reject.

    Rows that were drawn stay as they are: a node must not go because of its value. Their law has no such nodes.
    """
    certain, counts = draft.rows_certain.tolist(), draft.counts.tolist()
    rows = [index for index, text in enumerate(texts) if text is not None and certain[index] and counts[index]]
    kept = {row: _kept(draft, row, counts[row], texts[row]) for row in rows}
    changed = {row: nodes for row, nodes in kept.items() if len(nodes) < counts[row]}
    if not changed:
        return draft
    tokens, parents, left = draft.tokens.clone(), draft.parents.clone(), draft.counts.clone()
    for row, nodes in changed.items():
        moved = {node: place for place, node in enumerate(nodes)} | {ROOT: ROOT}
        tokens[row, : len(nodes)] = draft.tokens[row, nodes]
        parents[row, : len(nodes)] = torch.tensor([moved[node] for node in draft.parents[row, nodes].tolist()])
        left[row] = len(nodes)
    width = int(left.max())
    probs: Tensor | None = None if draft.probs is None else draft.probs[:, :width]
    return replace(draft, tokens=tokens[:, :width], parents=parents[:, :width], counts=left, probs=probs)


def _kept(draft: Draft, row: int, count: int, text: GuidedText | None) -> list[int]:
    assert text is not None
    flags = text.conforming(draft.tokens[row, :count].tolist(), draft.parents[row, :count].tolist())
    return [node for node, keep in enumerate(flags) if keep]
