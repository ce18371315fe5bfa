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
    held_out: list[Conversation]


def split(conversations: Sequence[Conversation]) -> Split:
    """By a hash of the prompt, so that one that was asked twice is on one side. At least one of several is held out."""
    drawn = sorted(conversations, key=lambda item: (_draw(item), item.key))
    least = _draw(drawn[0]) if len(drawn) > 1 else 0.0
    held_out = [item for item in drawn if _draw(item) < _HELD_OUT or _draw(item) == least]
    return Split(drawn[len(held_out) :], held_out)


def _draw(item: Conversation) -> float:
    """From 0 to 1."""
    return int.from_bytes(hashlib.sha256(str(item.prompt).encode()).digest()[:8], "big") / 2**64


def batches(
    conversations: Sequence[Conversation], store: FeatureStore, tokens: int, seed: int, first: int = 0
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
    lengths = [store.spans[item.key].count for item in group]
    longest = max(lengths)
    rows = [store.read(item.key) for item in group]
    features = torch.zeros(len(group), longest, rows[0].shape[1])
    tokens = torch.zeros(len(group), longest, dtype=torch.int64)
    answer = torch.zeros(len(group), longest, dtype=torch.bool)
    for i, (item, row, length) in enumerate(zip(group, rows, lengths, strict=True)):
        features[i, :length] = row
        tokens[i, :length] = torch.tensor(item.tokens[:length])
        answer[i, len(item.prompt) : length] = True
    return Batch(tokens, features, answer, torch.tensor(lengths))


def _groups(
    conversations: Sequence[Conversation], store: FeatureStore, tokens: int, order: random.Random
) -> Iterator[list[Conversation]]:
    """Conversations of like length, of about so many tokens together, in random order."""
    shuffled = list(conversations)
    order.shuffle(shuffled)

    def length(item: Conversation) -> int:
        return store.spans[item.key].count

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
