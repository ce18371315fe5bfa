"""The block bookkeeping: a random life of many sequences, and the copies of scattered paths."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trtspec.decoding.kv_cache import KVCache, SlotCopy

BLOCKS = 12


class CacheLife(RuleBasedStateMachine):
    """Any order of reservations, commits, trims and releases keeps every block in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(BLOCKS, 4)
        self.reserved: dict[int, int] = {}

    @rule(sequence=st.integers(0, 4), count=st.integers(1, 20))
    def reserve(self, sequence: int, count: int) -> None:
        room = self.cache.room(sequence)
        assert self.cache.reserve(sequence, count) == (count <= room)
        if count <= room:
            self.reserved[sequence] = max(count, self.reserved.get(sequence, 0))

    @rule(sequence=st.integers(0, 4), data=st.data())
    def commit(self, sequence: int, data: st.DataObject) -> None:
        if self.reserved.get(sequence):
            before = self.cache.length(sequence)
            fed = data.draw(st.integers(1, self.reserved[sequence]))
            nodes = self.reserved[sequence] - fed
            path = sorted(data.draw(st.sets(st.integers(0, max(nodes - 1, 0)), max_size=nodes)))
            copies = self.cache.commit(sequence, fed, path)
            assert self.cache.length(sequence) == before + fed + len(path)
            assert len(copies) == sum(node != index for index, node in enumerate(path))
            self.cache.trim(sequence)
            self.reserved[sequence] = 0

    @rule(sequence=st.integers(0, 4))
    def release(self, sequence: int) -> None:
        self.cache.release(sequence)
        self.reserved.pop(sequence, None)
        assert self.cache.length(sequence) == 0

    @invariant()
    def whole(self) -> None:
        self.cache.check()

    def teardown(self) -> None:
        for sequence in range(5):
            self.cache.release(sequence)
        assert self.cache.free_blocks == BLOCKS


CacheLife.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheLife = CacheLife.TestCase


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
def test_a_scattered_path_is_moved_to_follow_the_root(block_tokens: int) -> None:
    """Nodes 1 and 4 of six were accepted: their slots move to the first two places after the fed token."""
    cache = KVCache(64 // block_tokens, block_tokens)
    cache.reserve(7, 5)
    cache.commit(7, 5)
    cache.reserve(7, 1 + 6)
    table = cache.blocks(7)

    def slot(position: int) -> int:
        return table[position // block_tokens] * block_tokens + position % block_tokens

    assert cache.commit(7, 1, (1, 4)) == (SlotCopy(slot(7), slot(6)), SlotCopy(slot(10), slot(7)))
    assert cache.length(7) == 8


def test_a_chain_needs_no_copy_and_rejected_nodes_give_their_blocks_back() -> None:
    cache = KVCache(8, 4)
    cache.reserve(1, 1 + 15)
    assert cache.commit(1, 1, range(2)) == ()
    cache.trim(1)
    assert (cache.length(1), cache.free_blocks) == (3, 7)


def test_a_reservation_is_all_or_nothing() -> None:
    cache = KVCache(2, 4)
    assert not cache.reserve(1, 9)
    assert cache.free_blocks == 2
    assert cache.reserve(1, 8)
    assert not cache.reserve(2, 1)
    cache.check()


def test_check_sees_a_block_with_two_owners() -> None:
    cache = KVCache(2, 4)
    cache.reserve(1, 1)
    cache._free.append(cache.blocks(1)[0])
    with pytest.raises(AssertionError, match="two owners"):
        cache.check()
