"""From what a drafter's output head reads to losses and ranks: the one place that knows which token stands where.

At depth d a position guesses the token d + 2 places further on, and the target's own law of that token is its output
head over its last state one place earlier.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, smooth_l1_loss

from builders.training.examples import Batch
from builders.training.networks import shifted

NEVER = 1 << 20
"""The rank of a token that cannot be drafted."""


class Vocabulary(NamedTuple):
    """The tokens that can be drafted."""

    token_ids: Tensor  # [D] int64, ascending
    head: Tensor  # [D, H], the target's rows for them

    def places(self, tokens: Tensor) -> Tensor:
        """The index of each token in the vocabulary; its size where it is not in it."""
        found = torch.searchsorted(self.token_ids, tokens).clamp(max=len(self.token_ids) - 1)
        return torch.where(self.token_ids[found] == tokens, found, len(self.token_ids))


class Losses(NamedTuple):
    """Of one depth, as means over the answer tokens that can be drafted; 0 where there are none.

    Where the next token cannot be, nothing is to be learnt (EAGLE-3, Li et al. 2025, leaves such positions out, too).
    """

    law: Tensor
    """Cross-entropy against the target's law over the vocabulary."""
    state: Tensor
    """Smooth L1 distance to the target's last state (EAGLE, Li et al. 2024)."""


def losses(guesses: list[Tensor], batch: Batch, vocabulary: Vocabulary) -> list[Losses]:
    """The losses of each depth. The target's laws are computed once for all depths."""
    last = batch.features[..., -vocabulary.head.shape[1] :]
    rows, places = _followed(batch.answer)
    can = vocabulary.places(batch.tokens[rows, places + 1]) < len(vocabulary.token_ids)
    rows, places = rows[can], places[can]
    states = last[rows, places]
    with torch.no_grad():
        laws = linear(states, vocabulary.head).softmax(dim=-1)
    found = []
    for depth, guess in enumerate(guesses):
        begun = places >= depth
        begun &= batch.answer[rows, (places - depth).clamp(min=0)]  # the root is part of the answer, too
        mine = guess[rows[begun], places[begun] - 1 - depth]
        law = cross_entropy(linear(mine, vocabulary.head), laws[begun], reduction="none")
        state = smooth_l1_loss(mine, states[begun], reduction="none").mean(dim=1)
        found.append(Losses(_mean(law), _mean(state)))
    return found


def _mean(values: Tensor) -> Tensor:
    """0 of nothing."""
    return values.sum() / max(len(values), 1)


@torch.no_grad()
def ranks(guesses: list[Tensor], batch: Batch, vocabularies: Iterable[Vocabulary]) -> list[Tensor]:
    """How many tokens are thought likelier than the one that came: [roots, depths] for each conversation.

    Each depth has its vocabulary and head.

    A root is an answer token that another one follows. Tokens outside the vocabulary and beyond the end have `NEVER`.
    """
    rows, roots = _followed(batch.answer)
    columns = []
    for depth, (guess, vocabulary) in enumerate(zip(guesses, vocabularies, strict=False)):
        ahead = shifted(batch.answer, depth + 1)[rows, roots]
        place = vocabulary.places(shifted(batch.tokens, depth + 1)[rows, roots])
        can = ahead & (place < len(vocabulary.token_ids))
        logits = linear(guess[rows[can], roots[can] - 1], vocabulary.head)
        better = (logits > logits.gather(1, place[can].unsqueeze(1))).sum(dim=1)
        columns.append(torch.full_like(roots, NEVER).masked_scatter(can, better))
    counts = torch.bincount(rows, minlength=len(batch.tokens)).tolist()
    return list(torch.stack(columns, dim=1).cpu().split(counts))


def _followed(answer: Tensor) -> tuple[Tensor, Tensor]:
    """Row and position of the answer tokens that another one follows, row by row."""
    found = (answer & shifted(answer, 1)).nonzero(as_tuple=True)
    return found[0], found[1]
