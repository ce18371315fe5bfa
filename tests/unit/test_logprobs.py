"""What a pass tells about its tokens: values, ranks and best tokens, and which places they belong to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.plans import chunk_row, decode_row, plan_of
from trtspec.decoding.draft import Draft
from trtspec.decoding.logprobs import PlacedToken, pass_logprobs, token_logprobs
from trtspec.decoding.plan import PlanRow, TargetOutput
from trtspec.decoding.sampling import NO_TOKEN
from trtspec.decoding.verify import walk_tree
from trtspec.types import Request, TokenLogprob, TokenLogprobs

VOCABULARY = 40
NOTHING = TokenLogprobs(TokenLogprob(5, None, None))


def random_logits(places: int) -> Tensor:
    return torch.randn(places, VOCABULARY, generator=torch.Generator().manual_seed(6)) * 4


def expected(logits: Tensor, place: int, token: int, top: int) -> TokenLogprobs:
    """By a sort of the whole row."""
    values = logits[place].double().log_softmax(dim=0).tolist()
    order = sorted(range(VOCABULARY), key=lambda item: (-values[item], item))
    entries = [TokenLogprob(item, pytest.approx(values[item], abs=1e-5), order.index(item) + 1) for item in order]
    return TokenLogprobs(entries[order.index(token)], tuple(entries[:top]))


@pytest.mark.parametrize("top", [0, 1, 5, VOCABULARY, VOCABULARY + 3])
def test_values_ranks_and_the_best(top: int) -> None:
    logits = random_logits(130)  # more places than are computed at once
    placed = [PlacedToken(place, (place * 7) % VOCABULARY, top) for place in range(130)]
    told = token_logprobs(logits, placed)
    assert told == [expected(logits, item.place, item.token_id, top) for item in placed]


def test_each_place_has_as_many_best_tokens_as_it_asks_for() -> None:
    logits = random_logits(3)
    told = token_logprobs(logits, [PlacedToken(2, 4, 0), PlacedToken(0, 4, 3), PlacedToken(2, 4, 1)])
    assert told == [expected(logits, 2, 4, 0), expected(logits, 0, 4, 3), expected(logits, 2, 4, 1)]


def test_ties_go_by_id_and_share_a_rank() -> None:
    logits = torch.zeros(1, 6)
    logits[0, 3], logits[0, 5] = 1.0, -1.0
    (told,) = token_logprobs(logits, [PlacedToken(0, 4, 4)])
    assert [(item.token_id, item.rank) for item in told.top] == [(3, 1), (0, 2), (1, 2), (2, 2)]
    assert told.chosen.rank == 2
    assert told.chosen.logprob == told.top[1].logprob


def test_bfloat16_logits_are_told_in_float32() -> None:
    logits = random_logits(1).bfloat16()
    (told,) = token_logprobs(logits, [PlacedToken(0, 3, 2)])
    assert told == expected(logits.float(), 0, 3, 2)


def told_for(
    rows: list[PlanRow], draft: Draft, ids: Tensor, logits: Tensor
) -> list[tuple[list[int], list[int]] | None]:
    """Checks values against places, and returns the token ids told, emitted and of the prompt."""
    told = pass_logprobs(plan_of(*rows), draft, walk_tree(draft, ids), TargetOutput(logits))
    return [
        None
        if item is None
        else ([entry.chosen.token_id for entry in item.emitted], [entry.chosen.token_id for entry in item.prompt])
        for item in told
    ]


def test_emitted_tokens_are_told_at_the_places_that_chose_them() -> None:
    """Two rows with trees whose accepted paths lie scattered, beside one that asks for nothing."""
    ask = Request("a", (5, 6), 20, logprobs=2)
    rows = [decode_row(ask, (1,)), decode_row(replace(ask, logprobs=None), (1,)), decode_row(ask, (9, 9))]
    draft = Draft.trees([([7, 8, 9, 3], [-1, -1, 1, 1]), ([4], [-1]), ([2], [-1])])
    ids = torch.tensor([[8, 0, 3, 0, 11], [4, 12, -1, -1, -1], [6, 0, -1, -1, -1]])
    logits = random_logits(5 + 2 + 2)
    told = pass_logprobs(plan_of(*rows), draft, walk_tree(draft, ids), TargetOutput(logits))
    assert told[1] is None
    assert told[0] is not None and told[2] is not None
    assert told[0].emitted == tuple(expected(logits, place, token, 2) for place, token in ((0, 8), (2, 3), (4, 11)))
    assert told[2].emitted == (expected(logits, 7, 6, 2),)
    assert told[0].prompt == told[2].prompt == ()


def test_a_place_without_a_token_is_not_told() -> None:
    ask = Request("a", (5, 6), 20, logprobs=0)
    draft = Draft.chains([[7, 8]])
    logits = random_logits(3)
    logits[1] = math.nan
    told = told_for([decode_row(ask, (1,))], draft, torch.tensor([[7, NO_TOKEN, 3]]), logits)
    assert told == [([7], [])]


def test_prompt_tokens_are_told_by_the_chunk_that_scores_the_token_before() -> None:
    """Chunks of 3, 2 and 1 tokens of a prompt of six; the last one also chooses the first token of the output."""
    ask = Request("a", (5, 6, 7, 8, 9, 10), 20, logprobs=1, prompt_logprobs=2)
    neighbour = decode_row(Request("b", (1,), 5), sequence_id=1)
    logits = random_logits(1 + 3)
    prompts, emitted = list[TokenLogprobs](), list[TokenLogprobs]()
    for start, fed in ((0, 3), (3, 2), (5, 1)):
        row = chunk_row(ask, start, fed)
        ids = torch.tensor([[2], [12 if row.samples else NO_TOKEN]])
        scored = TargetOutput(logits[: 1 + fed])
        told = pass_logprobs(plan_of(neighbour, row), Draft.empty(2), walk_tree(Draft.empty(2), ids), scored)
        assert told[0] is None and told[1] is not None
        prompts += told[1].prompt
        emitted += told[1].emitted
    places = ((1, 6), (2, 7), (3, 8), (1, 9), (2, 10))
    assert prompts == [NOTHING, *(expected(logits, place, token, 2) for place, token in places)]
    assert emitted == [expected(logits, 1, 12, 1)]


def test_output_tokens_fed_again_are_not_taken_for_the_prompt() -> None:
    """After a preemption prompt and output are fed as one."""
    ask = Request("a", (5, 6), 20, prompt_logprobs=0)
    row = replace(decode_row(ask, (7, 8)), start=0, fed=4, scored=4)
    assert told_for([row], Draft.empty(1), torch.tensor([[9]]), random_logits(4)) == [([], [5, 6])]


def test_the_first_prompt_token_has_no_probability() -> None:
    ask = Request("a", (5,), 20, prompt_logprobs=3)
    (told,) = pass_logprobs(
        plan_of(chunk_row(ask, 0, 1)),
        Draft.empty(1),
        walk_tree(Draft.empty(1), torch.tensor([[3]])),
        TargetOutput(random_logits(1)),
    )
    assert told is not None and told.prompt == (NOTHING,)
