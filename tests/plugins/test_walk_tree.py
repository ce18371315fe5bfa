"""The kernel that walks trees, against the oracle: equal in every number."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins import eager_verification, launch_verification
from plugins.verification_specs import MOST_NODES
from tests.unit.test_verify import Tree, batches, trees
from trtspec.decoding.draft import Draft
from trtspec.decoding.verify import Outcome

SETTINGS = settings(max_examples=40, deadline=None)


def walk_both(draft: Draft, ids: list[list[int]]) -> Outcome:
    """What the kernel says, which must be what the oracle says."""
    arrays = (torch.tensor(ids).int(), draft.tokens.int(), draft.parents.int(), draft.counts.int())
    launched = launch_verification.walk_tree(*arrays)
    for name, ours, expected in zip(Outcome._fields, launched, eager_verification.walk_tree(*arrays), strict=True):
        assert ours.dtype == torch.int32, name
        assert torch.equal(ours, expected), name
    return launched


@SETTINGS
@given(batches())
def test_random_trees(batch: tuple[list[Tree], list[list[int]]]) -> None:
    rows, ids = batch
    walk_both(Draft.trees(rows), ids)


@SETTINGS
@given(trees(most=MOST_NODES, vocabulary=3), st.data())
def test_large_trees_that_agree_for_long(tree: Tree, data: st.DataObject) -> None:
    """After each place that has children the target mostly chooses one of them."""
    tokens, parents = tree
    ids = []
    for place in range(-1, len(tokens)):
        children = [token for token, parent in zip(tokens, parents, strict=True) if parent == place]
        ids.append(data.draw(st.sampled_from([*children, *children, 9])))
    walk_both(Draft.trees([tree]), [ids])


def test_a_whole_chain_of_the_most_nodes_and_a_chain_cut_within() -> None:
    chain = list(range(100, 100 + MOST_NODES))
    cut = [*chain[:40], 7, *chain[41:]]
    outcome = walk_both(Draft.chains([chain, cut, []]), [[*chain, 5], [*chain, 5], [8, *chain]])
    assert outcome.accepted.tolist() == [MOST_NODES, 40, 0]
    assert outcome.bonus.tolist() == [5, 140, 8]


def test_of_siblings_with_the_same_token_the_first_counts() -> None:
    tree = ([4, 6, 6, 1, 2], [-1, -1, -1, 1, 2])
    outcome = walk_both(Draft.trees([tree]), [[6, 0, 2, 2, 3, 3]])
    assert outcome.path[0].tolist() == [1, -1, -1, -1, -1]
    assert outcome.emitted[0].tolist() == [6, 2, -1, -1, -1, -1]


def test_padding_is_never_read() -> None:
    """Beyond the count there is a node that would match."""
    draft = Draft(torch.tensor([[3, 4]]), torch.tensor([[-1, 0]]), torch.tensor([1]))
    assert walk_both(draft, [[3, 4, 5]]).emitted.tolist() == [[3, 4, -1]]


def test_a_choice_that_is_no_token_ends_the_walk() -> None:
    assert walk_both(Draft.chains([[3, 4]]), [[3, -1, 4]]).emitted.tolist() == [[3, -1, -1]]


def test_shapes_that_a_kernel_cannot_see_are_refused() -> None:
    draft = Draft.chains([[1] * (MOST_NODES + 1)])
    with pytest.raises(ValueError, match="65 nodes a row; at most 64"):
        walk_both(draft, [[1] * (MOST_NODES + 2)])
    with pytest.raises(ValueError, match="ids: 2 places a row for 2 nodes"):
        walk_both(Draft.chains([[1, 2]]), [[1, 2]])
    pair = Draft.chains([[1, 2]])
    with pytest.raises(ValueError, match=r"tokens must be int32 \[1, 2\] row by row, not torch.int64"):
        launch_verification.walk_tree(torch.zeros(1, 3).int(), pair.tokens, pair.parents.int(), pair.counts.int())
