"""What a target engine tells of a position in its output `TopLogits`: the best logits, and the weight of all of them.

A row is [2M + 1] in float32: the M best logits, best first, their ids, and the log of the sum of the exponentials of
all logits of the vocabulary. Ids are exact in float32 up to 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TopRow:
    """The row of one position, which says what comes after it."""

    values: Tensor  # [M] float32, descending
    ids: Tensor  # [M] int64
    normaliser: float

    @classmethod
    def of(cls, row: Tensor) -> TopRow:
        """From what the engine told, [2M + 1]."""
        most = (len(row) - 1) // 2
        return cls(row[:most].float(), row[most : 2 * most].long(), float(row[-1]))

    def spread(self, vocabulary: int, elsewhere: float) -> Tensor:
        """As logits of the whole vocabulary, [1, V]; those that were not told are `elsewhere`."""
        logits = torch.full((1, vocabulary), elsewhere)
        logits[0, self.ids] = self.values
        return logits


def last_rows(output: Tensor, wanted: int, reused: int, vocabulary: int) -> list[TopRow | None]:
    """The rows of the last `wanted` positions of a prompt, in order; None for those that were not computed.

    `output` has a row for each position. The first `reused` were found in the cache, and their rows are whatever was in
    that memory: the runtime allocates them and writes none of them. A network that tells ids which may not be emitted
    is not this vocabulary's, and its rows tell nothing either.
    """
    first = len(output) - wanted
    places = range(first, len(output))
    return [None if place < reused else _computed(output[place], vocabulary) for place in places]


def _computed(row: Tensor, vocabulary: int) -> TopRow | None:
    """A row with NaN is of logits with NaN, whose ids are none: of no token it is told that it can be chosen."""
    if bool(row.isnan().any()):
        return TopRow(row.new_full((1,), math.nan), torch.zeros(1, dtype=torch.int64), math.nan)
    found = TopRow.of(row)
    return None if int(found.ids.max()) >= vocabulary else found


class Remembered:
    """Rows of a text that is growing, so that what the cache hides of a draft that was seen before is known still."""

    def __init__(self) -> None:
        self._text: tuple[int, ...] = ()
        self._rows: dict[int, TopRow] = {}

    def merge(self, text: Sequence[int], rows: Sequence[TopRow | None]) -> list[TopRow | None]:
        """Take the rows of the last positions of a text, and fill those that are missing from the last text's."""
        first = len(text) - len(rows)
        text = tuple(text)
        begun = text[:first] == self._text[:first]
        shared = first + _shared(self._text[first:], text[first:]) if begun else 0
        kept = {place: row for place, row in self._rows.items() if first <= place < shared}
        self._text = text
        self._rows = kept | {first + index: row for index, row in enumerate(rows) if row is not None}
        return [self._rows.get(first + index) for index in range(len(rows))]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning of two texts, of which one mostly goes on where the other ends."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return length
