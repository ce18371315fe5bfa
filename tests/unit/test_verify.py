"""`walk_tree` against a walk written as a loop, and the edges of both rules."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.law.world import reject
from trtspec.decoding.draft import ROOT, Draft, ancestors, depths, nodes_by_depth
from trtspec.decoding.verify import typical_acceptance, walk_tree

Tree = tuple[list[int], list[int]]


@st.composite
def trees(draw: st.DrawFn, most: int = 9, vocabulary: int = 4) -> Tree:
    size = draw(st.integers(0, most))
    tokens = [draw(st.integers(0, vocabulary - 1)) for _ in range(size)]
    return tokens, [draw(st.integers(ROOT, node - 1)) for node in range(size)]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Tree], list[list[int]]]:
    rows = draw(st.lists(trees(), min_size=1, max_size=4))
    width = max(len(tokens) for tokens, _ in rows)
    return rows, [[draw(st.integers(0, 3)) for _ in range(width + 1)] for _ in rows]


def walk(tree: Tree, ids: list[int]) -> tuple[list[int], int]:
    """Path and bonus of one row."""
    tokens, parents = tree
    here, path = ROOT, []
    while True:
        children = [node for node in range(len(tokens)) if parents[node] == here and tokens[node] == ids[here + 1]]
        if not children:
            return path, ids[here + 1]
        here = children[0]
        path.append(here)


@given(batches())
def test_walk_tree_follows_the_targets_choices(batch: tuple[list[Tree], list[list[int]]]) -> None:
    rows, ids = batch
    outcome = walk_tree(Draft.trees(rows), torch.tensor(ids))
    for i, tree in enumerate(rows):
        path, bonus = walk(tree, ids[i])
        accepted = int(outcome.accepted[i])
        assert outcome.path[i].tolist() == path + [-1] * (outcome.path.shape[1] - len(path))
        assert outcome.emitted[i, : accepted + 1].tolist() == [tree[0][node] for node in path] + [bonus]
        assert (accepted, int(outcome.bonus[i])) == (len(path), bonus)
        assert (outcome.emitted[i, accepted + 1 :] == -1).all()


def test_rows_do_not_disturb_each_other() -> None:
    """Draft lengths 4, 0, 2, 0, 1 in one batch, in every rotation."""
    chains = [[1, 2, 3, 4], [], [5, 6], [], [7]]
    ids = [[1, 2, 9, 9, 9], [8, 0, 0, 0, 0], [5, 6, 3, 0, 0], [2, 0, 0, 0, 0], [6, 0, 0, 0, 0]]
    expected = [[1, 2, 9], [8], [5, 6, 3], [2], [6]]
    for shift in range(5):
        order = [(row + shift) % 5 for row in range(5)]
        outcome = walk_tree(Draft.chains([chains[row] for row in order]), torch.tensor([ids[row] for row in order]))
        assert outcome.emitted.shape == (5, 5)
        for i, row in enumerate(order):
            assert outcome.emitted[i, : outcome.accepted[i] + 1].tolist() == expected[row]


def test_matches_after_the_first_rejection_do_not_count() -> None:
    outcome = walk_tree(Draft.chains([[1, 2, 3, 4]]), torch.tensor([[1, 0, 3, 4, 5]]))
    assert (outcome.accepted.item(), outcome.emitted[0, :2].tolist()) == (1, [1, 0])


@given(trees())
def test_tree_helpers_agree_with_their_definition(tree: Tree) -> None:
    draft = Draft.trees([tree])
    paths: list[list[int]] = []
    for node, parent in enumerate(tree[1]):
        paths.append(([] if parent == ROOT else paths[parent]) + [node])
    assert depths(draft)[0].tolist() == [len(path) for path in paths]
    for node, path in enumerate(paths):
        assert ancestors(draft)[0, node].nonzero().flatten().tolist() == path
    counted = nodes_by_depth(tree[1])
    assert list(counted) == [sum(len(path) == level + 1 for path in paths) for level in range(len(counted))]
    assert sum(counted) == len(tree[1])


def certain(target: torch.Tensor, chain: list[int], accept: float, token: int) -> tuple[int, list[int]]:
    """`chain_rejection` of one certain chain; the final draw prefers `token`."""
    vocabulary = target.shape[1]
    noise = torch.zeros(1, len(chain) + 1, vocabulary, dtype=torch.float64)
    noise[..., token] = 50.0
    uniforms = torch.full((1, len(chain)), accept, dtype=torch.float64)
    outcome = reject(Draft.chains([chain]), target.unsqueeze(0).double(), uniforms, noise)
    return int(outcome.accepted[0]), outcome.emitted[0, : outcome.accepted[0] + 1].tolist()


def test_rejection_of_a_certain_proposal_never_draws_it_again() -> None:
    """p = .4 .3 .2 .1 and token 0 proposed for certain: accepted below .4, else one of the others."""
    target = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]])
    assert certain(target, [0], accept=0.39, token=2) == (1, [0, 2])
    assert certain(target, [0], accept=0.41, token=0)[1][0] != 0
    assert certain(target, [0], accept=0.41, token=2) == (0, [2])


def test_impossible_proposals_are_rejected() -> None:
    target = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert certain(target, [0], accept=1e-9, token=0) == (0, [1])


def test_equal_laws_always_accept_and_a_count_of_zero_draws_from_the_target() -> None:
    law = torch.tensor([0.7, 0.3, 0.0], dtype=torch.float64)
    draft = Draft(
        torch.tensor([[0, 1], [0, 0]]), torch.tensor([[-1, 0], [-1, -1]]), torch.tensor([2, 0]), law.expand(2, 2, 3)
    )
    noise = torch.zeros(2, 3, 3, dtype=torch.float64)
    outcome = reject(draft, law.expand(2, 3, 3), torch.full((2, 2), 0.999), noise)
    assert outcome.accepted.tolist() == [2, 0]
    assert outcome.bonus.tolist() == [0, 0]


def typical_path(tree: Tree, likelihood: list[float], entropy: list[float]) -> list[int]:
    """The longest path of likely nodes, of equally long ones the likeliest, of equally likely ones the first."""
    tokens, parents = tree
    paths: list[list[int]] = []
    best: tuple[int, float, list[int]] = (0, 1.0, [])
    for node in range(len(tokens)):
        above = [] if parents[node] == ROOT else paths[parents[node]]
        likely = likelihood[node] > min(0.09, 0.3 * math.exp(-entropy[node]))
        able = likely and (parents[node] == ROOT or bool(above))
        paths.append([*above, node] if able else [])
        chance = math.prod(likelihood[step] for step in paths[node])
        if len(paths[node]) > best[0] or (len(paths[node]) == best[0] > 0 and chance > best[1] * (1 + 1e-9)):
            best = (len(paths[node]), chance, paths[node])
    return best[2]


@given(st.lists(trees(), min_size=1, max_size=4).filter(lambda rows: any(tokens for tokens, _ in rows)), st.data())
def test_typical_acceptance_keeps_the_longest_path_of_likely_nodes(rows: list[Tree], data: st.DataObject) -> None:
    draft = Draft.trees(rows)
    values = st.sampled_from([0.0, 0.005, 0.02, 0.0899, 0.0901, 0.3, 0.7])
    sizes = st.lists(values, min_size=draft.width, max_size=draft.width)
    likelihood = [data.draw(sizes) for _ in rows]
    entropy = [[data.draw(st.sampled_from([0.1, 1.0, 2.5, 5.0])) for _ in range(draft.width)] for _ in rows]
    path = typical_acceptance(draft, torch.tensor(likelihood).double(), torch.tensor(entropy).double(), 0.09, 0.3)
    for i, tree in enumerate(rows):
        expected = typical_path(tree, likelihood[i], entropy[i])
        assert path[i].tolist() == expected + [-1] * (draft.width - len(expected))


@pytest.mark.parametrize(
    ("likelihood", "entropy", "kept"), [(0.08, 2.0, 1), (0.08, 1.0, 0), (0.1, 0.0, 1), (0.09, 0, 0)]
)
def test_typical_is_what_beats_the_lower_of_both_thresholds(likelihood: float, entropy: float, kept: int) -> None:
    """0.3 exp(-2) = 0.041, 0.3 exp(-1) = 0.11 and 0.3: the threshold of 0.09 rules the latter two."""
    path = typical_acceptance(Draft.chains([[5]]), torch.tensor([[likelihood]]), torch.tensor([[entropy]]), 0.09, 0.3)
    assert (path >= 0).sum() == kept
