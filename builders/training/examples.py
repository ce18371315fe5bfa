"""Conversations as batches to learn from, and which of them are held out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from builders.training.answers import Conversation
from builders.training.features import FeatureStore

_HELD_OUT = 0.03
"""Share of the conversations that are only measured on."""
_LEAST_HELD_OUT = 2
"""Prompts: one to choose by, and one to measure on."""
_POOL = 16
"""Batches whose conversations are sorted by length together, so that little is padding."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded sequences, each from its first token on."""

    tokens: Tensor  # [B, L] int64
    features: Tensor  # [B, L, F] float32, the target's states at each token
    answer: Tensor  # [B, L] bool: the token is part of an answer, and no padding
    lengths: Tensor  # [B]

    @property
    def count(self) -> int:
        return int(self.lengths.sum())

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


class Split(NamedTuple):
    training: list[Conversation]
    choosing: list[Conversation]
    """What checkpoint, tree and depth are chosen by."""
    held_out: list[Conversation]
    """What nothing is chosen by: a drafter is measured on them when it is finished."""


def split(conversations: Sequence[Conversation]) -> Split:
    """By a hash of the prompt, so that one that was asked several times is in one part.

    The parts to choose by and to measure on have equally many prompts, at least one where there are three.
    """
    drawn = sorted(conversations, key=lambda item: (_draw(item), item.key))
    draws = sorted({_draw(item) for item in drawn})
    aside = max(sum(draw < _HELD_OUT for draw in draws), _LEAST_HELD_OUT)
    aside = min(aside, len(draws) - 1)
    choosing, held_out = set(draws[1:aside:2]), set(draws[:aside:2])
    return Split(
        [item for item in drawn if _draw(item) not in choosing | held_out],
        [item for item in drawn if _draw(item) in choosing],
        [item for item in drawn if _draw(item) in held_out],
    )


def _draw(item: Conversation) -> float:
    """From 0 to 1."""
    return int.from_bytes(hashlib.sha256(str(item.prompt).encode()).digest()[:8], "big") / 2**64


def batches(
    conversations: Sequence[Conversation],
    store: FeatureStore,
    tokens: int,
    seed: int,
    first: int = 0,
) -> Iterator[Batch]:
    """Batches without end from the `first` on, of about so many tokens; each epoch in another order."""
    epoch, index = 0, 0
    while True:
        for group in _groups(conversations, store, tokens, random.Random(f"{seed}-{epoch}")):
            if index >= first:
                yield collate(group, store)
            index += 1
        epoch += 1


def once(conversations: Sequence[Conversation], store: FeatureStore, tokens: int) -> Iterator[Batch]:
    """Every conversation in one batch."""
    for group in _groups(conversations, store, tokens, random.Random(0)):
        yield collate(group, store)


def collate(group: Sequence[Conversation], store: FeatureStore) -> Batch:
    """Pad conversations to one length.

    The last token may have no features: it is guessed, and nothing is guessed after it.
    """
    lengths = [known(item, store) for item in group]
    longest = max(lengths)
    rows = [store.read(item) for item in group]
    features = torch.zeros(len(group), longest, rows[0].shape[1])
    tokens = torch.zeros(len(group), longest, dtype=torch.int64)
    answer = torch.zeros(len(group), longest, dtype=torch.bool)
    for i, (item, row, length) in enumerate(zip(group, rows, lengths, strict=True)):
        features[i, : len(row)] = row
        tokens[i, :length] = torch.tensor(item.tokens[:length])
        answer[i, len(item.prompt) : length] = True
    return Batch(tokens, features, answer, torch.tensor(lengths))


def known(item: Conversation, store: FeatureStore) -> int:
    """Tokens of a conversation that are learnt from: those with features, and the one after them."""
    return min(len(item.tokens), store.count(item) + 1)


def _groups(
    conversations: Sequence[Conversation], store: FeatureStore, tokens: int, order: random.Random
) -> Iterator[list[Conversation]]:
    """Conversations of like length, of about so many tokens together, in random order."""
    shuffled = list(conversations)
    order.shuffle(shuffled)

    def length(item: Conversation) -> int:
        return known(item, store)

    for pool in _filled(shuffled, tokens * _POOL, length):
        groups = list(_filled(sorted(pool, key=length), tokens, length))
        order.shuffle(groups)
        yield from groups


def _filled(
    items: Sequence[Conversation], tokens: int, length: Callable[[Conversation], int]
) -> Iterator[list[Conversation]]:
    """Neighbours in groups of at most so many tokens, or of one conversation that has more."""
    group: list[Conversation] = []
    size = 0
    for item in items:
        if group and size + length(item) > tokens:
            yield group
            group, size = [], 0
        group.append(item)
        size += length(item)
    if group:
        yield group
