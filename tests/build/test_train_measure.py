"""Measures of ranks, against numbers worked out by hand and a search of all trees."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders.training.guesses import NEVER
from builders.training.measure import accuracies, best_tree, chain, rank_shares, tokens_per_pass

RANKS = [torch.tensor([[0, 0], [0, 1], [1, 0], [0, NEVER], [NEVER, NEVER]])]


def test_accuracies_count_only_what_was_reached() -> None:
    first, second = accuracies(RANKS)
    assert first.guesses == 5 and first.top == pytest.approx((0.6, 0.8, 0.8, 0.8))
    assert second.guesses == 3 and second.top == pytest.approx((1 / 3, 2 / 3, 2 / 3, 2 / 3))


def test_walks_go_on_behind_the_bonus() -> None:
    # root 0 takes two nodes and a bonus, root 3 one and a bonus: 5 tokens in 2 passes
    assert tokens_per_pass(RANKS, chain(2)) == pytest.approx(5 / 2)
    # by one node: roots 0, 2 (wrong), 3: 2 + 1 + 2 tokens in 3 passes
    assert tokens_per_pass(RANKS, chain(1)) == pytest.approx(5 / 3)
    assert tokens_per_pass(RANKS, ()) == 1.0
    assert tokens_per_pass([], chain(2)) == 1.0
    # the second child of the root and its first one are right at root 2: 3 tokens in 1 pass
    assert tokens_per_pass([RANKS[0][2:]], ((0,), (1,), (1, 0))) == 3.0


def worth(tree: tuple[tuple[int, ...], ...], shares: list[list[float]]) -> float:
    total = 0.0
    for path in tree:
        chance = 1.0
        for depth, rank in enumerate(path):
            chance *= shares[depth][rank]
        total += chance
    return total


def test_the_best_tree_of_a_small_example() -> None:
    shares = [[0.6, 0.2], [0.5, 0.3]]
    # products: 0.6; 0.30; 0.2; 0.18; 0.10; 0.06
    assert best_tree(shares, 4) == ((0,), (0, 0), (1,), (0, 1))
    assert best_tree(shares, 64) == ((0,), (0, 0), (1,), (0, 1), (1, 0), (1, 1))
    assert best_tree([[0.0, 0.0]], 4) == () == best_tree([], 4)


@given(st.lists(st.lists(st.floats(0.01, 0.5), min_size=2, max_size=2), min_size=3, max_size=3), st.integers(1, 5))
def test_no_tree_is_better(shares: list[list[float]], nodes: int) -> None:
    paths = [path for length in (1, 2, 3) for path in itertools.product(range(2), repeat=length)]
    trees = [
        tree
        for tree in itertools.combinations(paths, nodes)
        if all(len(path) == 1 or path[:-1] in tree for path in tree)
    ]
    found = best_tree(shares, nodes)
    assert worth(found, shares) == pytest.approx(max(worth(tree, shares) for tree in trees))
    assert all(len(path) == 1 or path[:-1] in found[:index] for index, path in enumerate(found))


def test_shares_are_those_of_what_was_reached() -> None:
    first, second = rank_shares(RANKS)
    assert first[:3] == pytest.approx([0.6, 0.2, 0.0])
    assert second[:3] == pytest.approx([1 / 3, 1 / 3, 0.0])
