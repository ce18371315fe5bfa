"""Prompt lookup: which match is continued, how far, and that the index grows with the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.views import view_row
from trtspec.decoding.proposer import BatchView
from trtspec.decoding.proposers.ngram import NgramProposer


def draft(proposer: NgramProposer, tokens: Sequence[int], depth: int = 8, sequence: int = 0) -> list[int]:
    result = proposer.propose(BatchView((view_row(tokens, depth, sequence_id=sequence),)))
    return result.tokens[0, : result.counts[0]].tolist()


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    assert draft(NgramProposer(2, 1, 3), [1, 2, 3, 7, 7, 9, 3, 8, 8, 1, 2, 3]) == [7, 7]


def test_of_equal_matches_the_latest_counts() -> None:
    assert draft(NgramProposer(1, 1, 2), [1, 2, 5, 1, 2, 6, 1, 2]) == [6]


def test_matches_shorter_than_the_minimum_are_ignored() -> None:
    assert draft(NgramProposer(4, 2, 3), [1, 2, 3, 9, 3]) == []
    assert draft(NgramProposer(4, 1, 3), [1, 2, 3, 9, 3]) == [9, 3, 9, 3]


def test_without_a_match_nothing_is_drafted() -> None:
    assert draft(NgramProposer(4), [1, 2, 3]) == []
    assert draft(NgramProposer(4), [1]) == []


def test_a_copy_goes_on_in_itself_past_the_end() -> None:
    assert draft(NgramProposer(7), [4, 5, 6, 4, 5, 6]) == [4, 5, 6, 4, 5, 6, 4]
    assert draft(NgramProposer(3), [9, 9]) == [9, 9, 9]


def test_limits_of_the_row_are_kept() -> None:
    proposer = NgramProposer(8)
    assert draft(proposer, [1, 1, 1], depth=2) == [1, 1]
    assert draft(proposer, [1, 1, 1], depth=0) == []


def test_released_sequences_are_forgotten() -> None:
    proposer = NgramProposer(4)
    draft(proposer, [1, 2, 1], sequence=3)
    assert 3 in proposer._indexes
    proposer.propose(BatchView((), released=(3, 99)))
    assert proposer._indexes == {}


def reference(tokens: list[int], shortest: int, longest: int, depth: int) -> list[int]:
    """The definition, searched from scratch."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 2, size - 2, -1):
            if tokens[end + 1 - size : end + 1] == tokens[-size:]:
                copied = list(tokens)
                for position in range(end + 1, end + 1 + depth):
                    copied.append(copied[position])
                return copied[len(tokens) :]
    return []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 2), st.integers(2, 4), st.data())
def test_the_growing_index_finds_what_a_search_finds(
    tokens: list[int], shortest: int, longest: int, data: st.DataObject
) -> None:
    proposer = NgramProposer(5, shortest, longest)
    size = 0
    while size < len(tokens):
        size += data.draw(st.integers(1, 6))
        assert draft(proposer, tokens[:size], 5) == reference(tokens[:size], shortest, longest, 5)
