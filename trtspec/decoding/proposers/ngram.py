"""Prompt lookup: what followed the last tokens earlier probably follows them again.

The longest earlier match of the sequence's last tokens, in prompt or output, is continued (Saxena 2023, "Prompt
lookup decoding"; Yang et al. 2023, "Inference with reference"). Of equally long matches the latest counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.decoding.draft import Draft
from trtspec.decoding.proposer import BatchView, Needs, SequenceView


class NgramProposer:
    """Chains of at most `depth` tokens from matches of `shortest` to `longest` tokens."""

    def __init__(self, depth: int, shortest: int = 1, longest: int = 4) -> None:
        self.needs = Needs(max_nodes=depth)
        self._sizes = range(longest, shortest - 1, -1)
        self._indexes: dict[int, _Index] = {}

    def propose(self, view: BatchView) -> Draft:
        for sequence_id in view.released:
            self._indexes.pop(sequence_id, None)
        return Draft.chains([self._continue(row) for row in view.rows])

    def _continue(self, row: SequenceView) -> Sequence[int]:
        length = min(row.max_depth, row.max_nodes, self.needs.max_nodes)
        if length <= 0:
            return ()
        index = self._indexes.setdefault(row.sequence_id, _Index(self._sizes))
        index.extend(row.tokens)
        start = index.match(row.tokens)
        return () if start is None else _copy(row.tokens, start, length)


class _Index:
    """Where each n-gram of a sequence was last followed by a token; grows with the sequence."""

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that end before the last token: the last one has no successor yet."""
        for end in range(self._indexed, len(tokens) - 1):
            for size in self._sizes:
                if size <= end + 1:
                    self._next[tuple(tokens[end + 1 - size : end + 1])] = end + 1
        self._indexed = max(self._indexed, len(tokens) - 1)

    def match(self, tokens: Sequence[int]) -> int | None:
        """Index of the token that followed the longest match of the sequence's end."""
        for size in self._sizes:
            if size <= len(tokens):
                start = self._next.get(tuple(tokens[len(tokens) - size :]))
                if start is not None:
                    return start
        return None


def _copy(tokens: Sequence[int], start: int, length: int) -> list[int]:
    """`length` tokens from `start` on; past the end the copy goes on in itself, as a repetition would."""
    copied: list[int] = []
    for position in range(start, start + length):
        beyond = position - len(tokens)
        copied.append(tokens[position] if beyond < 0 else copied[beyond])
    return copied
