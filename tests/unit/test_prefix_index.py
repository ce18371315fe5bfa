"""Blocks by name: a run of known texts ends at the first that is not, and the first of several names counts."""

from __future__ import annotations

import pytest

from trtspec.decoding.prefix_index import PrefixIndex


def index_of(**blocks: int) -> PrefixIndex:
    index = PrefixIndex()
    for name, block in blocks.items():
        index.add(name.encode(), block)
    return index


def test_what_follows_an_unknown_block_is_not_found() -> None:
    """Its keys and values stand for another beginning in place of the one that is missing."""
    index = index_of(a=1, c=3)
    assert index.find([[b"a"], [b"b"], [b"c"]]) == [1]
    assert index.find([[b"b"], [b"c"]]) == []


def test_the_first_name_that_is_known_counts() -> None:
    index = index_of(a=1, b=2)
    assert index.find([[b"a", b"b"], [b"x", b"b"], [b"b", b"a"]]) == [1, 2, 2]


def test_the_check_tells_blocks_that_rest_in_use_from_those_that_do_not_rest_unused() -> None:
    index = index_of(a=1)
    index.check([0, 1])
    with pytest.raises(AssertionError, match="does not rest unused"):
        index.check([0, 0])
    index.rest(1)
    index.check([0, 0])
    with pytest.raises(AssertionError, match="a block rests in use"):
        index.check([0, 1])
