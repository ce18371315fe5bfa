"""The shapes that passes are padded to, and which of them are kept recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtspec.decoding.plan import TargetOutput
from trtspec.executors.embedded.layout import PassLayout, RowPart
from trtspec.executors.embedded.padded import (
    LEAST_CONTEXT,
    MAX_CONTEXT_SLOTS,
    MAX_QUERIES,
    MAX_RECORDINGS,
    MAX_TOKENS,
    USES_BEFORE_RECORDING,
    Bucket,
    Paging,
    Recordings,
    Replay,
    bucket_of,
    pad,
    unpad,
)

PAGING = Paging(block_tokens=16, scratch=1600)
SHAPES = st.builds(Bucket, st.integers(1, 600), st.integers(1, 80), st.integers(1, 1 << 17))


@given(SHAPES)
def test_a_bucket_holds_what_was_asked_and_is_its_own_bucket(need: Bucket) -> None:
    bucket = bucket_of(need)
    if bucket is not None:
        assert bucket.rows >= need.rows and bucket.queries >= need.queries and bucket.context >= need.context
        assert bucket_of(bucket) == bucket
        assert bucket.tokens <= MAX_TOKENS and bucket.queries <= MAX_QUERIES
        assert bucket.rows * bucket.context <= MAX_CONTEXT_SLOTS


@given(SHAPES)
def test_padding_at_most_doubles_rows_nodes_and_context(need: Bucket) -> None:
    bucket = bucket_of(need)
    if bucket is not None:
        assert bucket.rows < 2 * need.rows or bucket.rows == 1
        assert bucket.queries - 1 < 2 * (need.queries - 1) or bucket.queries == need.queries
        assert bucket.context < 2 * need.context or bucket.context == LEAST_CONTEXT


@given(SHAPES, st.sampled_from(["rows", "queries", "context"]))
def test_a_larger_shape_never_has_a_smaller_bucket(need: Bucket, side: str) -> None:
    small, large = bucket_of(need), bucket_of(replace(need, **{side: getattr(need, side) + 1}))
    if large is not None:
        assert small is not None
        assert getattr(small, side) <= getattr(large, side)


def test_what_is_too_large_for_a_bucket() -> None:
    assert bucket_of(Bucket(1, MAX_QUERIES, 1)) == Bucket(1, MAX_QUERIES, LEAST_CONTEXT)
    assert bucket_of(Bucket(1, MAX_QUERIES + 1, 1)) is None
    assert bucket_of(Bucket(MAX_TOKENS, 1, 1)) == Bucket(MAX_TOKENS, 1, LEAST_CONTEXT)
    assert bucket_of(Bucket(MAX_TOKENS // 2, 3, 1)) is None
    assert bucket_of(Bucket(2, 1, MAX_CONTEXT_SLOTS // 2)) == Bucket(2, 1, MAX_CONTEXT_SLOTS // 2)
    assert bucket_of(Bucket(2, 1, MAX_CONTEXT_SLOTS // 2 + 1)) is None


def row(size: int, start: int = 0) -> RowPart:
    """The last one of its tokens gets logits. Its block table is 0, 1, 2, ..."""
    places = np.arange(start, start + size)
    seen = np.tri(size, dtype=np.bool_)
    return RowPart(places + 1000, places, places, seen, np.arange((start + size - 1) // 16 + 1), start, scored=1)


def test_what_is_packed_comes_out_again() -> None:
    bucket = Bucket(rows=4, queries=3, context=128)
    layout = unpad(pad([row(2, start=16), row(3)], bucket, PAGING), bucket, PAGING)
    assert layout.token_ids.view(4, 3).tolist() == [[1016, 1017, 0], [1000, 1001, 1002], [0, 0, 0], [0, 0, 0]]
    assert layout.positions.view(4, 3).tolist() == [[16, 17, 0], [0, 1, 2], [0, 0, 0], [0, 0, 0]]
    assert layout.slots.view(4, 3).tolist() == [[16, 17, 1600], [0, 1, 2], [1600] * 3, [1600] * 3]
    assert layout.scored.tolist() == [1, 5] + [0] * 10
    (group,) = layout.groups
    assert group.context[0].tolist() == [*range(18), *[17] * 110]
    assert set(group.context[2:].flatten().tolist()) == {1600}
    assert group.visible[:, 0].sum(dim=2).tolist() == [[17, 18, 18], [1, 2, 3], [1, 1, 1], [1, 1, 1]]


class Recorder:
    """Records nothing; a replay runs the pass again."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, run: Replay) -> Replay:
        self.recorded += 1
        return run


def recordings() -> tuple[Recordings, Recorder]:
    """Over a model whose logits are the scored token ids."""

    def run(layout: PassLayout) -> TargetOutput:
        return TargetOutput(layout.token_ids[layout.scored].unsqueeze(1))

    recorder = Recorder()
    return Recordings(run, recorder, PAGING, torch.device("cpu")), recorder


def use(made: Recordings, size: int, start: int, times: int = 1) -> list[TargetOutput | None]:
    return [made.replay([row(size, start)]) for _ in range(times)]


def test_a_shape_is_recorded_once_it_has_come_often() -> None:
    made, recorder = recordings()
    *early, first, second = use(made, 2, 5, USES_BEFORE_RECORDING + 1)
    assert early == [None] * (USES_BEFORE_RECORDING - 1)
    assert first is not None and second is not None
    assert first.logits.tolist() == second.logits.tolist() == [[1006]]
    assert recorder.recorded == 1
    use(made, MAX_QUERIES + 1, 0, 2 * USES_BEFORE_RECORDING)
    assert recorder.recorded == 1, "a shape without a bucket was recorded"


def test_the_recording_that_was_longest_unused_goes_first() -> None:
    made, recorder = recordings()
    shapes = [(1 + (1 << nodes), 100 << context) for nodes in range(6) for context in range(8)][: MAX_RECORDINGS + 1]
    *kept, last = shapes
    for size, start in kept:
        use(made, size, start, USES_BEFORE_RECORDING)
    use(made, *kept[0])
    use(made, *last, USES_BEFORE_RECORDING)
    assert recorder.recorded == MAX_RECORDINGS + 1
    assert use(made, *kept[0]) != [None]
    assert use(made, *kept[1]) == [None]
    assert recorder.recorded == MAX_RECORDINGS + 1
