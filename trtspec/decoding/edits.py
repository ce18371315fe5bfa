"""How the logits of a place are edited, by the history of that place: prompt, output so far, and the path to a node.

What a sequence's tokens are counted into is kept from pass to pass and grows by what was committed, so no pass reads a
whole history. Paths are never kept: they may be rejected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trtspec.decoding.guiding import Bools, GuidedText
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.processors import PlaceEdits, Values
from trtspec.decoding.sending import send, sent
from trtspec.types import Request, SamplingParams

Ints = NDArray[np.int64]

_NOTHING: Ints = np.empty(0, dtype=np.int64)
_NONE = -1
"""No token, and no count."""


class _TokenCounts:
    """Which tokens a sequence holds, and how often each is in its output."""

    def __init__(self, vocabulary: int) -> None:
        self._seen: Ints = _NOTHING
        self._counts = np.full(vocabulary, _NONE, dtype=np.int64)
        self._length = 0

    def extend(self, history: Sequence[int], prompt: int) -> None:
        """Count what the history holds since the last call; its first `prompt` tokens are no output."""
        new = np.array(history[self._length :], dtype=np.int64)
        fresh = np.unique(new[self._counts[new] == _NONE])
        self._counts[fresh] = 0
        self._seen = np.concatenate([self._seen, fresh])
        np.add.at(self._counts, new[max(prompt - self._length, 0) :], 1)
        self._length = len(history)

    def after(self, path: Sequence[int]) -> tuple[Ints, Ints]:
        """Tokens and counts where the output goes on along a path."""
        passed, times = np.unique(np.array(path, dtype=np.int64), return_counts=True)
        others = self._seen[~np.isin(self._seen, passed)] if path else self._seen
        counts = np.maximum(self._counts[passed], 0) + times
        return np.concatenate([others, passed]), np.concatenate([self._counts[others], counts])


class _Words:
    """Forbidden sequences of two and more tokens: the last is forbidden where those before it end the history."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._reach = max((len(word) - 1 for word in words), default=0)
        self._last: Ints = np.array([word[-1] for word in words], dtype=np.int64)
        self._before = np.full((len(words), self._reach), _NONE, dtype=np.int64)
        for row, word in zip(self._before, words, strict=True):
            row[self._reach - len(word) + 1 :] = word[:-1]

    def forbidden(self, history: Sequence[int], path: Sequence[int]) -> Ints:
        """What must not follow."""
        if not self._reach:
            return _NOTHING
        end = [*history[-self._reach :], *path][-self._reach :]
        tail = np.array([_NONE] * (self._reach - len(end)) + end, dtype=np.int64)
        ending = ((self._before == tail) | (self._before == _NONE)).all(axis=1)
        return np.compress(ending, self._last)


@dataclass(frozen=True, slots=True)
class _Tracked:
    """One sequence: what its request edits at every place, and what its history decides."""

    bias: Values
    words: _Words
    end_ids: Ints
    """Those that can be emitted."""
    counts: _TokenCounts | None
    """None without penalties."""

    @classmethod
    def of(cls, request: Request, logits: Tensor) -> _Tracked:
        sampling = request.sampling
        bias = dict(sampling.logit_bias) | {word[0]: -math.inf for word in sampling.bad_words if len(word) == 1}
        return cls(
            bias=Values(
                sent(list(bias), torch.int64, logits.device), sent(list(bias.values()), torch.float32, logits.device)
            ),
            words=_Words([word for word in sampling.bad_words if len(word) > 1]),
            end_ids=np.array(sorted(id_ for id_ in request.end_ids if id_ < logits.shape[1]), dtype=np.int64),
            counts=_TokenCounts(logits.shape[1]) if _penalises(sampling) else None,
        )


class Editor:
    """Finds the edits of places. Keeps a record of each sequence that asks for any, until it is released."""

    def __init__(self) -> None:
        self._tracked: dict[int, _Tracked] = {}
        self._guided: dict[int, GuidedText] = {}

    def release(self, sequence_ids: Iterable[int]) -> None:
        """Forget sequences that ended."""
        for sequence_id in sequence_ids:
            self._tracked.pop(sequence_id, None)
            self._guided.pop(sequence_id, None)

    def guided(self, row: PlanRow) -> GuidedText | None:
        """The output of a row so far under its guide; None where it has none, or nothing is chosen after it."""
        if row.request.guide is None or not row.samples:
            return None
        text = self._guided.get(row.sequence_id)
        if text is None:
            text = self._guided[row.sequence_id] = GuidedText(row.request)
        text.follow(row.history)
        return text

    def edits(self, row: PlanRow, path: Sequence[int], logits: Tensor) -> PlaceEdits | None:
        """The edits after a row's last token and the tokens of a path; None where its request asks for none.

        Of the pass's logits only width and device matter.
        """
        if not row.request.edits:
            return None
        if row.sequence_id not in self._tracked:
            self._tracked[row.sequence_id] = _Tracked.of(row.request, logits)
        tracked = self._tracked[row.sequence_id]
        seen, counts = _NOTHING, _NOTHING
        if tracked.counts:
            tracked.counts.extend(row.history, len(row.request.prompt))
            seen, counts = tracked.counts.after(path)
        forbidden = tracked.words.forbidden(row.history, path)
        text = self.guided(row)
        allowed = None if text is None else text.allowed(path)
        short = row.next_position + len(path) < len(row.request.prompt) + row.request.sampling.min_tokens
        if short and (allowed is None or _leaves_others(allowed, tracked.end_ids)):
            forbidden = np.concatenate([forbidden, tracked.end_ids])
        return PlaceEdits(
            sampling=row.request.sampling,
            bias=tracked.bias,
            seen=Values(_tensor(seen, logits.device), _tensor(counts, logits.device).float()),
            forbidden=_tensor(forbidden, logits.device),
            allowed=None if allowed is None else send(torch.from_numpy(allowed), logits.device),
        )


def _leaves_others(allowed: Bools, end_ids: Ints) -> bool:
    """A guide that lets the text do nothing but end goes before a least length."""
    others = allowed.copy()
    others[end_ids] = False
    return bool(others.any())


def _penalises(sampling: SamplingParams) -> bool:
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0)


def _tensor(values: Ints, device: torch.device) -> Tensor:
    return send(torch.from_numpy(values), device)
