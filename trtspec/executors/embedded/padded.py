"""Passes of few tokens, padded to shapes that come again, so that what runs them can be recorded once and replayed.

A padded pass says what the pass as it is says. Padding writes to the pool's scratch slot, which no sequence owns and
no row with tokens reads. It knows neither weights nor devices: a recorder is whatever turns a function into its replay.
The limits are estimates that no GPU has confirmed yet.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.decoding.plan import TargetOutput
from trtspec.executors.embedded.layout import PassLayout, RowPart, RowTable, attention_group, scored_places, stack

Run = Callable[[PassLayout], TargetOutput]
Replay = Callable[[], TargetOutput]
Recorder = Callable[[Replay], Replay]
"""Turns a pass over fixed memory into one that costs less to repeat; what it returns is overwritten by the next."""

MAX_QUERIES = 65
"""A root and the largest tree. Rows with more new tokens are prefill, which computes long enough to hide its launch."""
MAX_TOKENS = 256
"""New tokens of a padded pass."""
MAX_CONTEXT_SLOTS = 1 << 16
"""Slots that one layer of a padded pass gathers, all rows together; beyond, padding costs more than launches."""
LEAST_CONTEXT = 128
"""Smallest context that a padded pass spans; smaller ones cost the same."""
USES_BEFORE_RECORDING = 3
"""A recording costs as much as some hundred passes, so shapes that come once or twice get none."""
MAX_RECORDINGS = 32
"""Each keeps its logits, up to MAX_TOKENS times the vocabulary."""


@dataclass(frozen=True, slots=True)
class Paging:
    """How a pool's slots are divided."""

    block_tokens: int
    scratch: int
    """The slot of no sequence; it begins a block beyond theirs."""

    def blocks(self, positions: int) -> int:
        """How many blocks hold so many positions."""
        return -(-positions // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A shape of padded passes: B rows of Q new tokens, each over C places of context."""

    rows: int
    queries: int
    context: int

    @property
    def tokens(self) -> int:
        return self.rows * self.queries


def bucket_of(need: Bucket) -> Bucket | None:
    """The smallest bucket that holds a shape; None where the shape is too large for one.

    Rows and context are powers of two, queries a root beside a power of two of nodes.
    """
    bucket = Bucket(
        rows=_power_of_two(need.rows),
        queries=1 + (_power_of_two(need.queries - 1) if need.queries > 1 else 0),
        context=max(_power_of_two(need.context), LEAST_CONTEXT),
    )
    small = bucket.queries <= MAX_QUERIES and bucket.tokens <= MAX_TOKENS
    return bucket if small and bucket.rows * bucket.context <= MAX_CONTEXT_SLOTS else None


def shape_of(parts: Sequence[RowPart]) -> Bucket:
    """The smallest shape that holds a pass."""
    return Bucket(len(parts), max(part.size for part in parts), max(part.length for part in parts))


def pad(parts: Sequence[RowPart], bucket: Bucket, paging: Paging) -> Tensor:
    """A pass in the shape of a bucket as one int64 vector on the CPU: a single copy brings it to a device."""
    idle = _idle_row(paging)
    rows = [*parts, *[idle] * (bucket.rows - len(parts))]
    token_ids, positions, slots = (np.zeros((bucket.rows, bucket.queries), np.int64) for _ in range(3))
    slots += paging.scratch
    for i, part in enumerate(parts):
        token_ids[i, : part.size] = part.token_ids
        positions[i, : part.size] = part.positions
        slots[i, : part.size] = part.slots
    scored = np.zeros(bucket.tokens, np.int64)
    places = scored_places(rows, range(0, bucket.tokens, bucket.queries))
    scored[: len(places)] = places
    flat = [torch.from_numpy(item).flatten() for item in (token_ids, positions, slots, scored)]
    table = stack(rows, bucket.queries, paging.blocks(bucket.context))
    return torch.cat([*flat, table.starts, table.lengths, table.seen.flatten().long(), table.blocks.flatten()])


def unpad(packed: Tensor, bucket: Bucket, paging: Paging) -> PassLayout:
    """The layout of what `pad` packed, made where that is. Scored places beyond the real ones are the first token's."""
    rows, queries, tokens = bucket.rows, bucket.queries, bucket.tokens
    sizes = [tokens] * 4 + [rows] * 2 + [tokens * queries, rows * paging.blocks(bucket.context)]
    token_ids, positions, slots, scored, starts, lengths, seen, blocks = packed.split(sizes)
    table = RowTable(starts, lengths, seen.view(rows, queries, queries).bool(), blocks.view(rows, -1))
    index = torch.arange(tokens, device=packed.device).view(rows, queries)
    group = attention_group(index, table, paging.block_tokens, bucket.context)
    return PassLayout(token_ids, positions, slots, scored, (group,))


class Recordings:
    """The recorded passes of a runner, by bucket; the one that was longest unused goes first."""

    def __init__(self, run: Run, record: Recorder, paging: Paging, device: torch.device) -> None:
        self._run = run
        self._record = record
        self._paging = paging
        self._device = device
        self._uses: Counter[Bucket] = Counter()
        self._kept: OrderedDict[Bucket, _Recording] = OrderedDict()

    def replay(self, parts: Sequence[RowPart]) -> TargetOutput | None:
        """Run a pass by its recording; None where its shape has none. Logits are valid until the next pass."""
        bucket = bucket_of(shape_of(parts))
        if bucket is None or not self._has(bucket):
            return None
        self._kept.move_to_end(bucket)
        output = self._kept[bucket].replay(pad(parts, bucket, self._paging))
        count = sum(part.scored for part in parts)
        return TargetOutput(output.logits[:count], _unpadded(output.features, parts, bucket))

    def _has(self, bucket: Bucket) -> bool:
        """Whether a recording is there, made now if the bucket has come often enough."""
        if bucket in self._kept:
            return True
        self._uses[bucket] += 1
        if self._uses[bucket] < USES_BEFORE_RECORDING:
            return False
        del self._uses[bucket]
        self._kept[bucket] = self._make(bucket)  # before one is dropped: recording waits for what still runs
        if len(self._kept) > MAX_RECORDINGS:
            self._kept.popitem(last=False)
        return True

    def _make(self, bucket: Bucket) -> _Recording:
        packed = pad([], bucket, self._paging).to(self._device)
        return _Recording(packed, self._record(lambda: self._run(unpad(packed, bucket, self._paging))))


class _Recording:
    """One bucket's pass over memory of its own."""

    def __init__(self, packed: Tensor, repeat: Replay) -> None:
        self._packed = packed
        self._repeat = repeat

    def replay(self, packed: Tensor) -> TargetOutput:
        self._packed.copy_(packed, non_blocking=True)
        return self._repeat()


def _unpadded(features: Tensor | None, parts: Sequence[RowPart], bucket: Bucket) -> Tensor | None:
    """A copy of the rows of real tokens."""
    if features is None:
        return None
    begins = range(0, bucket.tokens, bucket.queries)
    places = [np.arange(begin, begin + part.size) for begin, part in zip(begins, parts, strict=False)]
    return features[torch.from_numpy(np.concatenate(places)).to(features.device)]


def _idle_row(paging: Paging) -> RowPart:
    """One token at the scratch slot, which sees itself: attention over nothing would be NaN."""
    token = np.zeros(1, np.int64)
    slot = token + paging.scratch
    return RowPart(token, token, slot, np.ones((1, 1), np.bool_), slot // paging.block_tokens, start=0, scored=0)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
