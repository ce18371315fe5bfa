"""A pass as the arrays of the compiled graph: order, positions, scored places, blocks and tree masks."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import PlanRow, StepPlan
from trtspec.executors.embedded.openvino import graph
from trtspec.executors.embedded.openvino.inputs import pass_inputs
from trtspec.types import Request


def row(history: Sequence[int], start: int, fed: int, scored: int, blocks: tuple[int, ...], nodes: int = 0) -> PlanRow:
    return PlanRow(
        sequence_id=0,
        request=Request("r", tuple(history), 4),
        history=list(history),
        start=start,
        fed=fed,
        samples=scored > 0,
        prefill=False,
        max_depth=nodes,
        max_nodes=nodes,
        blocks=blocks,
        choice=0,
        scored=scored,
    )


def arrays(rows: Sequence[PlanRow], draft: Draft) -> dict[str, list[int] | int]:
    return {name: array.tolist() for name, array in pass_inputs(StepPlan(0, tuple(rows)), draft, 4).items()}


def test_chunks_chains_and_plain_rows_need_no_mask() -> None:
    chunk = row([1, 2, 3, 4, 5, 6], start=0, fed=5, scored=0, blocks=(7, 3, 9))
    plain = row([1, 2, 3, 4], start=3, fed=1, scored=1, blocks=(2,))
    chain = row([5, 6, 7], start=2, fed=1, scored=1, blocks=(4, 5, 6), nodes=3)
    found = arrays([chunk, plain, chain], Draft.chains([[], [], [8, 9, 10]]))
    assert found == {
        graph.TOKEN_IDS: [1, 2, 3, 4, 5, 4, 7, 8, 9, 10],
        graph.POSITIONS: [0, 1, 2, 3, 4, 3, 2, 3, 4, 5],
        graph.SCORED: [5, 6, 7, 8, 9],
        graph.PAST_LENGTHS: [0, 3, 2],
        graph.QUERY_BEGINS: [0, 5, 6, 10],
        graph.BLOCKS: [7, 3, 2, 4, 5],
        graph.BLOCK_BEGINS: [0, 2, 3, 5],
        graph.LONGEST: 6,
        graph.TREE_MASK: [],
        graph.TREE_MASK_BEGINS: [],
    }


def test_a_tree_shares_positions_and_brings_a_mask() -> None:
    plain = row([1, 2], start=1, fed=1, scored=1, blocks=(0,))
    tree = row([5, 6, 7], start=1, fed=2, scored=1, blocks=(4, 5), nodes=3)
    found = arrays([plain, tree], Draft.trees([([], []), ([8, 9, 10], [-1, -1, 1])]))
    assert found[graph.POSITIONS] == [1, 1, 2, 3, 3, 4]
    assert found[graph.SCORED] == [0, 2, 3, 4, 5]
    assert found[graph.TREE_MASK_BEGINS] == [0, 0, 25]
    mask = found[graph.TREE_MASK]
    assert isinstance(mask, list)
    assert [mask[at : at + 5] for at in range(0, 25, 5)] == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


def test_all_fed_places_are_scored_where_the_prompt_is() -> None:
    prompt = row([1, 2, 3, 4, 5], start=1, fed=3, scored=3, blocks=(0, 1))
    assert arrays([prompt], Draft.empty(1))[graph.SCORED] == [0, 1, 2]
