"""The block bookkeeping: a random life of many sequences that share text, and the copies of scattered paths."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trtspec.decoding.kv_cache import KVCache, SlotCopy
from trtspec.decoding.prefix_index import BlockNames

BLOCKS = 12
SIZE = 4


def life(sharing: bool) -> type:
    """Any order of openings, reservations, commits, trims, withdrawals and releases keeps every block in its place,
    and what is found was written by a sequence of the same text and salt."""

    class CacheLife(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.cache = KVCache(BLOCKS, SIZE, prefix_sharing=sharing)
            self.texts: dict[int, list[int]] = {}
            self.cells: dict[int, tuple[str, int]] = {}
            self.salts: dict[int, str] = {}

        @rule(sequence=st.integers(0, 4), salt=st.sampled_from("ab"), text=st.integers(1, 22), odd=st.integers(0, 22))
        def open(self, sequence: int, salt: str, text: int, odd: int) -> None:
            """Texts are alike but for one place, so that some begin alike."""
            if sequence in self.texts:
                return
            tokens = [int(place == odd) for place in range(text)]
            before = self.cache.free_blocks
            found = self.cache.open(sequence, tokens, [BlockNames(salt, SIZE)])
            if found is None:
                assert self.cache.free_blocks == before < -(-text // SIZE)
                return
            assert found % SIZE == 0 and found < text and (sharing or found == 0)
            self.texts[sequence], self.salts[sequence] = tokens, salt
            assert self.held(sequence) == [(salt, token) for token in tokens[:found]]

        @rule(data=st.data(), extra=st.integers(0, 6))
        @precondition(lambda self: self.texts)
        def grow(self, data: st.DataObject, extra: int) -> None:
            """Commit a chunk of what is pending, or all of it and then accepted nodes of a draft."""
            sequence = data.draw(st.sampled_from(sorted(self.texts)))
            start, tokens = self.cache.length(sequence), self.texts[sequence]
            room, pending = self.cache.room(sequence), max(len(tokens) - start, 1)
            fed = data.draw(st.integers(1, pending))
            nodes = extra if fed == pending else 0
            assert self.cache.reserve(sequence, fed + nodes) == (fed + nodes <= room)
            if fed + nodes <= room:
                path = sorted(data.draw(st.sets(st.integers(0, nodes - 1)))) if nodes else []
                copies = self.cache.commit(sequence, fed, path)
                assert len(copies) == sum(node != index for index, node in enumerate(path))
                length = start + fed + len(path)
                assert self.cache.length(sequence) == length
                tokens += [1] * (length - len(tokens))
                self.write(sequence, start, tokens[start:length])
                self.cache.trim(sequence)

        @rule(data=st.data(), told=st.integers(0, 30))
        @precondition(lambda self: self.texts)
        def publish(self, data: st.DataObject, told: int) -> None:
            """An output may end before the end of what was committed."""
            sequence = data.draw(st.sampled_from(sorted(self.texts)))
            names = BlockNames(self.salts[sequence], SIZE)
            self.cache.publish(sequence, self.texts[sequence][:told], names)

        @rule(data=st.data(), doubt=st.booleans())
        @precondition(lambda self: self.texts)
        def release(self, data: st.DataObject, doubt: bool) -> None:
            sequence = data.draw(st.sampled_from(sorted(self.texts)))
            if doubt:
                self.cache.withdraw(sequence)
            self.cache.release(sequence)
            assert self.cache.length(sequence) == 0
            del self.texts[sequence]

        @invariant()
        def whole(self) -> None:
            self.cache.check()
            for sequence, tokens in self.texts.items():
                committed = tokens[: self.cache.length(sequence)]
                assert self.held(sequence) == [(self.salts[sequence], token) for token in committed]

        def teardown(self) -> None:
            for sequence in self.texts:
                self.cache.release(sequence)
            assert self.cache.free_blocks == BLOCKS

        def write(self, sequence: int, start: int, tokens: Sequence[int]) -> None:
            for position, token in enumerate(tokens, start):
                self.cells[self.slot(sequence, position)] = (self.salts[sequence], token)

        def held(self, sequence: int) -> list[tuple[str, int]]:
            return [self.cells[self.slot(sequence, position)] for position in range(self.cache.length(sequence))]

        def slot(self, sequence: int, position: int) -> int:
            return self.cache.blocks(sequence)[position // SIZE] * SIZE + position % SIZE

    CacheLife.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    return CacheLife.TestCase


TestSharedLife = life(True)
TestLifeWithoutSharing = life(False)


def settled(cache: KVCache, sequence: int, tokens: Sequence[int], salt: str = "") -> int:
    """Open, commit and publish a text; returns how much of it was found."""
    names = BlockNames(salt, cache.block_tokens)
    found = cache.open(sequence, tokens, [names])
    assert found is not None
    cache.commit(sequence, len(tokens) - found)
    cache.publish(sequence, tokens, names)
    return found


def test_full_blocks_are_found_in_use_and_after_release_but_never_the_whole_text() -> None:
    cache = KVCache(12, 4)
    assert settled(cache, 1, range(8)) == 0
    assert settled(cache, 2, range(8)) == 4, "the last token's block must be computed, for its logits"
    assert settled(cache, 3, range(9)) == 8
    assert cache.blocks(3)[:2] == cache.blocks(1)[:2]
    for sequence in (1, 2, 3):
        cache.release(sequence)
    assert cache.free_blocks == 12
    assert settled(cache, 4, [*range(8), 99]) == 8
    assert settled(cache, 5, [*range(7), 99, 8]) == 4
    cache.check()


def test_another_salt_finds_nothing() -> None:
    cache = KVCache(12, 4)
    settled(cache, 1, range(9), salt="tenant a")
    assert settled(cache, 2, range(9), salt="tenant b") == 0
    assert settled(cache, 3, range(9), salt="tenant a") == 8


def test_equal_blocks_after_different_beginnings_are_different() -> None:
    cache = KVCache(12, 4)
    settled(cache, 1, [0, 0, 0, 0, 5, 5, 5, 5])
    assert settled(cache, 2, [1, 0, 0, 0, 5, 5, 5, 5, 5]) == 0


def test_the_longest_unused_is_given_away_first_and_of_a_text_its_end() -> None:
    cache = KVCache(6, 4)
    settled(cache, 1, range(12))
    settled(cache, 2, range(50, 62))
    cache.release(2)
    cache.release(1)
    settled(cache, 3, range(100, 104))  # takes the last block of 2
    assert settled(cache, 4, [*range(50, 58), 1]) == 8  # and wakes its others
    cache.release(4)
    settled(cache, 5, range(200, 208))  # so that 1 was unused longer: takes its last blocks
    assert settled(cache, 6, [*range(4), 1]) == 4
    cache.check()


def test_a_text_that_is_computed_twice_at_once_is_kept_once() -> None:
    cache = KVCache(4, 4)
    names = BlockNames("", 4), BlockNames("", 4)
    for sequence in (0, 1):
        assert cache.open(sequence, range(4), [names[sequence]]) == 0
    for sequence in (0, 1):
        cache.commit(sequence, 4)
        cache.publish(sequence, range(4), names[sequence])
    first = cache.blocks(0)[0]
    cache.release(0)
    cache.release(1)
    assert settled(cache, 2, range(5)) == 4
    assert cache.blocks(2)[0] == first
    cache.check()


def test_what_is_reserved_or_after_the_end_is_not_found() -> None:
    cache = KVCache(8, 4)
    names = BlockNames("", 4)
    cache.open(1, range(4), [names])
    cache.publish(1, range(4), names)
    assert settled(cache, 2, range(5)) == 0, "nothing was committed"
    cache.reserve(1, 4 + 8)
    cache.commit(1, 4, range(8))
    cache.publish(1, range(10), names)  # the text ended two tokens before the accepted run
    assert settled(cache, 3, range(12)) == 8


def test_a_block_one_token_of_which_is_not_cached_yet_is_not_found() -> None:
    cache = KVCache(8, 4)
    names = BlockNames("", 4)
    cache.open(1, range(8), [names])
    cache.commit(1, 7)
    cache.publish(1, range(8), names)
    assert settled(cache, 2, range(9)) == 4


def test_a_withdrawn_text_is_not_found_and_its_users_keep_it() -> None:
    cache = KVCache(8, 4)
    settled(cache, 1, range(8))
    assert settled(cache, 2, range(9)) == 8
    cache.withdraw(1)
    cache.release(1)
    assert settled(cache, 3, range(9)) == 0
    assert cache.free_blocks == 8 - 3 - 3
    cache.check()


def test_without_sharing_nothing_is_found() -> None:
    cache = KVCache(8, 4, prefix_sharing=False)
    settled(cache, 1, range(8))
    assert settled(cache, 2, range(9)) == 0


def test_room_counts_what_only_rests_and_not_what_would_be_taken_over() -> None:
    """Three blocks rest. A text that goes on from two of them needs two more, and there is but one."""
    cache = KVCache(3, 4)
    settled(cache, 1, range(12))
    cache.release(1)
    assert cache.room(2) == 12
    assert cache.open(2, range(16), [BlockNames("", 4)]) is None
    assert cache.free_blocks == 3
    assert cache.open(2, range(12), [BlockNames("", 4)]) == 8
    cache.check()


def test_check_sees_a_block_that_others_read_and_its_owner_may_write() -> None:
    cache = KVCache(4, 4)
    settled(cache, 1, range(4))
    cache._tables[1].length = 3
    with pytest.raises(AssertionError, match="could write what others read"):
        cache.check()


def test_check_sees_a_user_too_few() -> None:
    cache = KVCache(4, 4)
    settled(cache, 1, range(5))
    settled(cache, 2, range(5))
    cache._users[cache.blocks(1)[0]] = 1
    with pytest.raises(AssertionError, match="counted wrong"):
        cache.check()


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
