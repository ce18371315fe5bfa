"""Which tokens a drafter can draft: those that the target's answers use most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from builders.training.answers import Conversation


def draft_vocabulary(
    conversations: Iterable[Conversation], size: int, vocabulary_size: int, always: Collection[int]
) -> Tensor:
    """Ids in ascending order: those of `always`, then the most frequent in the answers, lower ids first where equal."""
    counts = Counter(token for item in conversations for token in item.answer)
    wanted = sorted(range(vocabulary_size), key=lambda token: (token not in always, -counts[token], token))
    return torch.tensor(sorted(wanted[:size]))
