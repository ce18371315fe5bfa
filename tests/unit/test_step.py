"""A pass between the logits and its outcome: which places choose, and by which row of the logits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.plans import chunk_row, decode_row, plan_of
from trtspec.decoding.choosing import choose_all
from trtspec.decoding.draft import Draft, place_depths
from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import PlanRow, StepPlan, TargetOutput
from trtspec.decoding.proposer import BatchView, Needs
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose
from trtspec.decoding.step import run_pass
from trtspec.decoding.verify import walk_tree
from trtspec.types import Request, SamplingParams

VOCABULARY = 5
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.6, "bad_words": ((1, 2), (4, 4, 0))}
KINDS = (
    SamplingParams(),
    SamplingParams(0.9),
    SamplingParams(**PENALTIES),
    SamplingParams(0.8, top_p=0.9, min_tokens=4, **PENALTIES),
)


class Drafted:
    """A proposer that drafts what it was given."""

    needs = Needs(64, tree=True)

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def propose(self, view: BatchView) -> Draft:
        return self.draft


class Told:
    """A runner that says what it was given."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def forward(self, plan: StepPlan, draft: Draft) -> TargetOutput:
        return TargetOutput(self.logits)


def random_tree(values: random.Random) -> tuple[list[int], list[int]]:
    count = values.randrange(9)
    return [values.randrange(VOCABULARY) for _ in range(count)], [values.randrange(-1, i) for i in range(count)]


def every_choice(row: PlanRow, tree: tuple[list[int], list[int]], logits: Tensor) -> list[int]:
    """The target's token after the root and after each node, all of them, one by one."""
    tokens, parents = tree
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*paths[parent + 1], token))
    return [
        choose(
            logits[place : place + 1],
            ChoiceRows(
                [row.request.sampling],
                [row.request.seed],
                [row.next_position + depth],
                [row.choice],
                [Editor().edits(row, paths[place], logits)],
            ),
        ).item()
        for place, depth in enumerate(place_depths(parents))
    ]


@pytest.mark.parametrize("seed", range(12))
def test_choosing_along_the_walk_gives_what_choosing_everywhere_gives(seed: int) -> None:
    """Random trees of rows of all kinds, between rows that only feed a prompt, scored or not."""
    values = random.Random(seed)
    requests = [Request(str(i), (1, 2, 3), 20, kind, seed=i, eos_ids=frozenset({0})) for i, kind in enumerate(KINDS)]
    feeding = replace(requests[0], prompt=(1, 2, 3, 4, 0), prompt_logprobs=0)
    rows = [
        chunk_row(feeding, 0, 3, sequence_id=10),
        *(decode_row(request, (4, 1), sequence_id=i) for i, request in enumerate(requests)),
        replace(chunk_row(feeding, 0, 2, sequence_id=11), scored=0),
        replace(decode_row(requests[3], (2,), sequence_id=12), choice=1),
        chunk_row(replace(feeding, sampling=KINDS[3]), 2, 3, sequence_id=13),
    ]
    values.shuffle(rows)
    trees = [random_tree(values) if row.max_nodes else ([], []) for row in rows]
    sizes = [row.scored + len(tokens) for row, (tokens, _) in zip(rows, trees, strict=True)]
    logits = torch.randn(sum(sizes), VOCABULARY, generator=torch.Generator().manual_seed(seed))
    draft = Draft.trees(trees)
    expected = torch.full((len(rows), draft.width + 1), NO_TOKEN)
    for i, (row, tree, part) in enumerate(zip(rows, trees, logits.split(sizes), strict=True)):
        if row.samples:
            expected[i, : len(tree[0]) + 1] = torch.tensor(every_choice(row, tree, part[row.scored - 1 :]))
    result = run_pass(plan_of(*rows), Drafted(draft), Told(logits), Editor())
    for column, other in zip(result.outcome, walk_tree(draft, expected), strict=True):
        assert torch.equal(column, other)


def test_places_the_walk_does_not_reach_cost_nothing_where_more_than_an_arg_max_is_to_be_done() -> None:
    row = decode_row(Request("a", (1,), 20, SamplingParams(1.0, logit_bias=((2, 50.0),))))
    ids = choose_all(plan_of(row), Draft.trees([([3, 2, 1, 4], [-1, -1, 1, 0])]), torch.zeros(5, VOCABULARY), Editor())
    assert ids.tolist() == [[2, NO_TOKEN, 2, NO_TOKEN, NO_TOKEN]]


def test_a_released_sequence_is_released_by_the_editor_even_in_a_pass_without_edits() -> None:
    penalised = decode_row(Request("a", (1,), 20, SamplingParams(presence_penalty=1.0)), (3,), sequence_id=7)
    editor, logits = Editor(), torch.zeros(1, VOCABULARY)
    run_pass(plan_of(penalised), Drafted(Draft.empty(1)), Told(logits), editor)
    other = plan_of(decode_row(Request("b", (1,), 20)), released=(7,))
    run_pass(other, Drafted(Draft.empty(1)), Told(logits), editor)
    edits = editor.edits(replace(penalised, history=[1]), (), logits)
    assert edits is not None and edits.seen.tokens.tolist() == [1], "counts of a released sequence were kept"


def test_a_draft_beyond_its_rows_room_is_refused() -> None:
    row = replace(decode_row(Request("a", (1,), 20)), max_nodes=1)
    with pytest.raises(ValueError, match=r"drafted \[2\] nodes, more than its rows have room for"):
        run_pass(plan_of(row), Drafted(Draft.chains([[1, 2]])), Told(torch.zeros(3, VOCABULARY)), Editor())
