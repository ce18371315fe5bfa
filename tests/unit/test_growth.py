"""Growing drafts: against the whole tree of guesses, and asking for no more than can be submitted."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.views import view_row
from trtspec.decoding.candidates import Candidates
from trtspec.decoding.draft import ROOT
from trtspec.decoding.growth import Growth
from trtspec.decoding.trees import DynamicShape, StaticShape, TreeShape, chain

Path = tuple[int, ...]
TREES = (chain(4), ((0,), (1,), (0, 0)), ((0,), (1,), (0, 0), (2,), (0, 1), (1, 0), (0, 0, 0), (1, 0, 1)))


def guess(row: int, path: Path, children: int, spread: float) -> tuple[list[int], list[float]]:
    """What comes after a path in a row: tokens, the likeliest first, and their log-probabilities."""
    draws = random.Random(f"{row} {path}")
    weights = sorted((math.exp(spread * draws.gauss(0, 1)) for _ in range(children + 3)), reverse=True)
    tokens = draws.sample(range(100), children)
    return tokens, [math.log(weight / sum(weights)) for weight in weights[:children]]


def grown(
    shape: TreeShape, limits: Sequence[tuple[int, int]], spread: float, least: float
) -> tuple[list[set[Path]], int]:
    """The tokens of each row's submitted paths, and how often a drafter was asked."""
    growth = Growth(shape, [view_row([1], depth, nodes) for depth, nodes in limits], least)
    places: list[list[Path]] = [[()] for _ in limits]
    asked = 0
    while True:
        said = [guess(row, path, shape.children, spread) for row, paths in enumerate(places) for path in paths]
        asked += 1
        found = Candidates(torch.tensor([tokens for tokens, _ in said]), torch.tensor([logs for _, logs in said]))
        count = growth.add(found)
        if not count:
            break
        places = [[path_of(growth, row, node) for node in nodes[-count:]] for row, nodes in enumerate(growth.expanded)]
    draft = growth.draft()
    rows = []
    for tokens, parents, count in zip(
        draft.tokens.tolist(), draft.parents.tolist(), draft.counts.tolist(), strict=True
    ):
        paths: list[Path] = []
        for token, parent in zip(tokens[:count], parents[:count], strict=True):
            paths.append((*(paths[parent] if parent != ROOT else ()), token))
        rows.append(set(paths))
    return rows, asked


def path_of(growth: Growth, row: int, node: int) -> Path:
    parent = int(growth.parents[row, node])
    above = () if parent == ROOT else path_of(growth, row, parent)
    return (*above, int(growth.tokens[row, node]))


def told(row: int, ranks: Path, children: int) -> Path:
    """The tokens of a path of ranks."""
    path: Path = ()
    for rank in ranks:
        path = (*path, guess(row, path, children, 1.0)[0][rank])
    return path


def best(shape: DynamicShape, width: int, row: int, depth: int, nodes: int, spread: float, least: float) -> set[Path]:
    """The best paths of all that are known when each depth expands its `width` best, whatever becomes of them."""
    known: dict[Path, float] = {}
    places: dict[Path, float] = {(): 0.0}
    for _ in range(depth):
        new = {}
        for path, reached in places.items():
            tokens, logs = guess(row, path, shape.children, spread)
            new |= {(*path, token): reached + log for token, log in zip(tokens, logs, strict=True)}
        known |= new
        places = dict(sorted(new.items(), key=lambda item: -item[1])[:width])
    able = {path: log for path, log in known.items() if least == 0 or log >= math.log(least)}
    return set(sorted(able, key=lambda path: -able[path])[: min(nodes, shape.nodes)])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), min_size=1, max_size=3),
    st.sampled_from((0.3, 1.0, 3.0)),
    st.sampled_from((0.0, 0.2)),
)
def test_a_growing_tree_submits_the_best_of_all_that_it_could_know(
    depth: int, width: int, nodes: int, limits: list[tuple[int, int]], spread: float, least: float
) -> None:
    shape = DynamicShape(depth, width, nodes)
    deep = min(depth, nodes)
    limits = [(min(most, depth), room) for most, room in limits]
    rows, _ = grown(shape, limits, spread, least)
    expanded = min(width, nodes // deep)
    for row, (most, room) in enumerate(limits):
        if room >= nodes:
            assert rows[row] == best(shape, expanded, row, min(most, deep), room, spread, least)
        assert len(rows[row]) <= min(room, nodes) and max(map(len, rows[row]), default=0) <= most
        alone = [(0, 0)] * row + [(most, room)] + [(0, 0)] * (len(limits) - row - 1)
        assert grown(shape, alone, spread, least)[0][row] == rows[row]


@pytest.mark.parametrize("tree", TREES)
def test_a_static_tree_submits_its_first_nodes_within_each_rows_limits(tree: tuple[Path, ...]) -> None:
    limits = [(depth, nodes) for depth in (1, 2, 4) for nodes in (1, 3, len(tree))]
    rows, _ = grown(StaticShape(tree), limits, 1.0, 0.0)
    for row, (depth, nodes) in enumerate(limits):
        within = [path for path in tree if len(path) <= depth]
        assert rows[row] == {told(row, path, StaticShape(tree).children) for path in within[:nodes]}


def test_a_drafter_is_not_asked_about_what_could_not_be_submitted() -> None:
    shape = DynamicShape(3, 3, 3)
    _, even = grown(shape, [(3, 3)], 0.1, 0.0)  # the root's three guesses are better than any guess after the first
    _, sure = grown(shape, [(3, 3)], 9.0, 0.0)
    assert (even, sure) == (2, 3)
    _, one = grown(shape, [(3, 1)], 9.0, 0.0)
    assert one == 1


def test_which_shapes_feed_a_drafter_one_node_after_the_other() -> None:
    assert StaticShape(chain(3)).expands_chain and StaticShape(((0,), (0, 0), (1,))).expands_chain
    assert not StaticShape(((0,), (1,), (0, 0), (1, 0))).expands_chain
    assert not StaticShape(((0,), (1,), (0, 0), (1, 0), (1, 0, 0))).expands_chain
    assert DynamicShape(3, 3, 3).expands_chain and not DynamicShape(3, 3, 6).expands_chain


def test_paths_lead_to_the_places_that_are_expanded_next() -> None:
    shape = StaticShape(((0,), (1,), (0, 0), (1, 0)))
    growth = Growth(shape, [view_row([1, 2], 2, 8)], 0.0)
    assert growth.paths(0) == [()] and growth.places == 1
    growth.add(Candidates(torch.tensor([[5, 6]]), torch.zeros(1, 2)))
    assert growth.paths(0) == [(5,), (6,)] and growth.places == 2


def guessed(*logs: Sequence[float]) -> Candidates:
    """One row's guesses after each place, as probabilities; the tokens count."""
    count = sum(map(len, logs))
    return Candidates(torch.arange(count).reshape(len(logs), -1), torch.tensor(logs).log())


def test_nodes_below_follow_their_own_parent_in_whatever_order_parents_were_expanded() -> None:
    growth = Growth(DynamicShape(3, 2, 6), [view_row([1], 3, 6)], 0.0)
    assert growth.add(guessed([0.3, 0.6])) == 2
    assert growth.add(guessed([0.5, 0.4], [0.9, 0.1])) == 2
    # The second guess is the best of all. After it come its first and, with 0.27, the first of the other one.
    assert growth.expanded.tolist() == [[1, 0, 2, 4]]
    assert growth.expanded_draft(np.array([0])).parents.tolist() == [[ROOT, ROOT, 0, 1]]


def test_a_row_with_room_for_what_was_expanded_goes_on_where_deeper_nodes_are_better() -> None:
    growth = Growth(DynamicShape(2, 2, 4), [view_row([1], 2, 2)], 0.0)
    assert growth.add(guessed([0.9, 0.1])) == 2
    assert growth.add(guessed([0.9, 0.1], [0.5, 0.5])) == 0
    draft = growth.draft()
    assert draft.parents.tolist() == [[ROOT, 0]]


def test_a_node_that_is_as_likely_as_is_asked_stays() -> None:
    growth = Growth(StaticShape(chain(2)), [view_row([1], 2, 2)], 1.0)
    growth.add(guessed([1.0]))
    growth.add(guessed([1.0]))
    assert growth.draft().counts.tolist() == [2]


def test_a_dynamic_tree_is_as_deep_as_it_is_asked_to_be_whatever_rows_allow() -> None:
    rows, asked = grown(DynamicShape(2, 2, 6), [(5, 6)], 1.0, 0.0)
    assert max(map(len, rows[0])) == asked == 2
