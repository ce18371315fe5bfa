"""What the target computes for every token of a conversation, cached on disk: bfloat16 rows in shards.

A shard is written whole or not at all, so an interrupted run goes on after the last one.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from builders.training.answers import MAX_TOKENS, Conversation
from builders.training.target import Target
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import DraftPlan, DraftRow

_PASS_TOKENS = 2048
"""Enough that products are bound by arithmetic, few enough that activations stay small."""
_SHARD_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Span:
    """Where a conversation's rows are."""

    shard: Path
    start: int
    count: int


class Shelf:
    """Gathers conversations until they fill a shard."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._rows: list[tuple[Conversation, Tensor]] = []

    def put(self, conversation: Conversation, features: Tensor) -> None:
        """[count, F] of a conversation."""
        self._rows.append((conversation, features))
        if sum(len(part) for _, part in self._rows) >= _SHARD_TOKENS:
            self.close()

    def close(self) -> None:
        """Write what is there."""
        if self._rows:
            self._store.append(self._rows)
            self._rows = []


class FeatureStore:
    """A folder of shards: `N.bin` holds the rows, `N.json` key, length and text of each span, and is written last.

    A span belongs to a text, whatever its key. Shards of older runs name no texts: their keys are believed where the
    length is that of the conversation, its last token aside or not.
    """

    def __init__(self, directory: Path, width: int) -> None:
        self._directory = directory
        self._width = width
        self._by_text: dict[str, Span] = {}
        self._by_key: dict[str, Span] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self._shards = sorted(directory.glob("*.json"))
        for index in self._shards:
            self._index(index)

    @property
    def tokens(self) -> int:
        return sum(span.count for spans in (self._by_text, self._by_key) for span in spans.values())

    def find(self, conversation: Conversation) -> Span | None:
        """Where the rows of a conversation are; None where they are missing."""
        span = self._by_text.get(text_sha256(conversation))
        if span is not None:
            return span
        old, length = self._by_key.get(conversation.key), len(conversation.tokens[:MAX_TOKENS])
        return old if old is not None and old.count in (length - 1, length) else None

    def count(self, conversation: Conversation) -> int:
        """Rows of a conversation that is there: one a token, but perhaps none for the last."""
        return self._span(conversation).count

    def read(self, conversation: Conversation) -> Tensor:
        """[count, F] bfloat16 of a conversation, mapped: only what is used is read."""
        span = self._span(conversation)
        shape = (span.count, self._width)
        rows = np.memmap(span.shard, np.int16, "c", offset=2 * span.start * self._width, shape=shape)
        return torch.from_numpy(rows).view(torch.bfloat16)

    def append(self, rows: Sequence[tuple[Conversation, Tensor]]) -> None:
        """Write one more shard."""
        path = self._directory / f"{len(self._shards):06d}"
        joined = torch.cat([features.to(torch.bfloat16) for _, features in rows])
        path.with_suffix(".bin").write_bytes(joined.view(torch.uint8).numpy().data)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps([[item.key, len(features), text_sha256(item)] for item, features in rows]))
        index = path.with_suffix(".json")
        partial.replace(index)
        self._shards.append(index)
        self._index(index)

    def _index(self, index: Path) -> None:
        start = 0
        for key, count, *text in json.loads(index.read_text()):
            spans, name = (self._by_text, text[0]) if text else (self._by_key, key)
            spans[name] = Span(index.with_suffix(".bin"), start, count)
            start += count

    def _span(self, conversation: Conversation) -> Span:
        span = self.find(conversation)
        if span is None:
            raise KeyError(f"no features of conversation {conversation.key}")
        return span


def text_sha256(conversation: Conversation) -> str:
    """A text by its token ids."""
    return hashlib.sha256(array("q", conversation.tokens).tobytes()).hexdigest()


def open_store(target: Target, directory: Path) -> FeatureStore:
    """The store of a target's features."""
    return FeatureStore(directory, len(target.features) * target.config.hidden_size)


def write_features(target: Target, conversations: Sequence[Conversation], store: FeatureStore) -> Iterator[int]:
    """Run what the store lacks through the target; yields the tokens of each pass."""
    missing = [item for item in conversations if store.find(item) is None]
    if not missing:
        return
    runner = target.runner(min(MAX_TOKENS, target.manifest.max_context_tokens), _PASS_TOKENS)
    shelf = Shelf(store)
    for group in _passes(missing, target.block_tokens):
        features = runner.forward(_plan(group, target.block_tokens), Draft.empty(len(group))).features
        assert features is not None, "the runner was created for features"
        lengths = [len(item.tokens[:MAX_TOKENS]) for item in group]
        for item, part in zip(group, features.cpu().split(lengths), strict=True):
            shelf.put(item, part)
        yield sum(lengths)
    shelf.close()


def _passes(conversations: Sequence[Conversation], block_tokens: int) -> Iterator[list[Conversation]]:
    """Conversations in groups whose blocks fit into a pass."""
    group: list[Conversation] = []
    for item in conversations:
        if (sum(_blocks(other, block_tokens) for other in [*group, item])) * block_tokens > _PASS_TOKENS:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _plan(group: Sequence[Conversation], block_tokens: int) -> DraftPlan:
    """One pass over whole conversations, each in blocks of its own."""
    rows, first = [], 0
    for item in group:
        blocks = _blocks(item, block_tokens)
        rows.append(DraftRow(item.tokens[:MAX_TOKENS], 0, range(first, first + blocks), scored=1))
        first += blocks
    return DraftPlan(tuple(rows))


def _blocks(item: Conversation, block_tokens: int) -> int:
    return -(-len(item.tokens[:MAX_TOKENS]) // block_tokens)
