"""Our own loop: what the best logits of a position decide is what all logits decide, and nothing else is decided."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins import eager
from trtspec.decoding.processors import PlaceEdits, Values
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose
from trtspec.executors.tensorrt_llm.loop.deciding import decide
from trtspec.executors.tensorrt_llm.loop.drafts import Depth
from trtspec.executors.tensorrt_llm.loop.logprobs import token_logprobs
from trtspec.executors.tensorrt_llm.loop.top_rows import Remembered, TopRow, last_rows
from trtspec.types import SamplingParams

VOCABULARY, MOST = 64, 12


def told(logits: torch.Tensor, most: int = MOST) -> torch.Tensor:
    values, ids = logits.topk(most)
    return torch.cat([values, ids.float(), logits.logsumexp(0, keepdim=True)])


def at(sampling: SamplingParams, edits: PlaceEdits | None = None, seed: int = 1) -> ChoiceRows:
    return ChoiceRows([sampling], [seed], [7], [0], [edits])


def edits_of(sampling: SamplingParams, seen: list[int], counts: list[float], forbidden: list[int]) -> PlaceEdits:
    bias = dict(sampling.logit_bias)
    return PlaceEdits(
        sampling,
        Values(torch.tensor(list(bias), dtype=torch.int64), torch.tensor(list(bias.values()))),
        Values(torch.tensor(seen, dtype=torch.int64), torch.tensor(counts)),
        torch.tensor(forbidden, dtype=torch.int64),
    )


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 5, MOST, MOST + 1]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.99]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.2, -0.4]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-3.0, 2.0, 6.0]), max_size=3).map(
        lambda found: tuple(found.items())
    ),
)
places = st.lists(st.integers(0, VOCABULARY - 1), unique=True, max_size=6)


@settings(max_examples=400, deadline=None)
@given(
    samplings,
    places,
    places,
    st.integers(0, 2**31),
    st.sampled_from([0.5, 2.0, 5.0]),
    st.sampled_from([0.0, 0.25]),
    st.integers(0, 2**31),
)
def test_what_is_decided_is_what_all_logits_decide(
    sampling: SamplingParams, seen: list[int], forbidden: list[int], noise: int, spread: float, step: float, seed: int
) -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(noise)) * spread
    if step:  # as in half precision, many are equal
        logits = (logits / step).round() * step
    penalised = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0)
    kept = seen if penalised else []
    where = at(sampling, edits_of(sampling, kept, [float(i % 3) for i in kept], forbidden), seed)
    expected = int(choose(logits.unsqueeze(0), where))
    found = decide(TopRow.of(told(logits)), where, VOCABULARY)
    assert found in (expected, None)
    assert decide(TopRow.of(told(logits, VOCABULARY)), where, VOCABULARY) == expected


def peaked(step: float) -> torch.Tensor:
    return -step * torch.arange(VOCABULARY, dtype=torch.float32)


DECIDED = {
    "greedy": SamplingParams(),
    "top_k": SamplingParams(temperature=1.0, top_k=MOST - 1),
    "top_k and top_p": SamplingParams(temperature=2.0, top_k=3, top_p=0.5),
    "top_p": SamplingParams(temperature=1.0, top_p=0.95),
    "top_p, colder": SamplingParams(temperature=0.5, top_p=0.95),
    "top_p, hotter": SamplingParams(temperature=1.5, top_p=0.88),
    "min_p": SamplingParams(temperature=1.0, min_p=0.1),
    "min_p where the nucleus is too wide": SamplingParams(temperature=1.0, top_p=0.99999, min_p=0.1),
}


@pytest.mark.parametrize("name", DECIDED)
def test_a_peaked_row_decides(name: str) -> None:
    logits = peaked(0.7)
    where = at(DECIDED[name])
    assert decide(TopRow.of(told(logits)), where, VOCABULARY) == int(choose(logits.unsqueeze(0), where))


UNDECIDED = {
    "the whole law": (SamplingParams(temperature=1.0), peaked(0.7)),
    "a top_k whose last can have an equal that is not told": (SamplingParams(temperature=1.0, top_k=MOST), peaked(0.7)),
    "a wide nucleus": (SamplingParams(temperature=1.0, top_p=0.95), peaked(0.1)),
    "a small min_p": (SamplingParams(temperature=1.0, min_p=1e-5), peaked(0.7)),
    "equals beyond what is told": (SamplingParams(), torch.zeros(VOCABULARY)),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_a_wide_row_does_not(name: str) -> None:
    sampling, logits = UNDECIDED[name]
    assert decide(TopRow.of(told(logits)), at(sampling), VOCABULARY) is None


def test_a_raised_token_that_is_not_told_decides_nothing() -> None:
    sampling = SamplingParams(logit_bias=((VOCABULARY - 1, 30.0),))
    edits = edits_of(sampling, [], [], [])
    assert decide(TopRow.of(told(peaked(0.7))), at(sampling, edits), VOCABULARY) is None
    lowered = SamplingParams(logit_bias=((VOCABULARY - 1, -30.0),))
    assert decide(TopRow.of(told(peaked(0.7))), at(lowered, edits_of(lowered, [], [], [])), VOCABULARY) == 0


def test_a_row_without_any_allowed_token_says_so() -> None:
    forbidden = edits_of(SamplingParams(bad_words=((0,),)), [], [], list(range(VOCABULARY)))
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(temperature=temperature, top_p=0.9, bad_words=((0,),))
        assert decide(TopRow.of(told(peaked(0.7))), at(sampling, forbidden), VOCABULARY) == -2


def test_log_probabilities_are_of_all_logits() -> None:
    logits = peaked(0.7)
    row, expected = TopRow.of(told(logits)), logits.log_softmax(0)
    found = token_logprobs(row, 3, 2)
    assert found.chosen.logprob == pytest.approx(float(expected[3])) and found.chosen.rank == 4
    assert [item.token_id for item in found.top] == [0, 1]
    assert token_logprobs(row, MOST, 0).chosen.logprob is None
    assert token_logprobs(None, 3, 2).chosen.rank is None and token_logprobs(None, 3, 2).top == ()
    tied = TopRow(torch.tensor([2.0, 2.0, 1.0]), torch.tensor([5, 6, 7]), 3.0)
    assert [token_logprobs(tied, id_, 0).chosen.rank for id_ in (5, 6, 7)] == [1, 1, 3]


def test_rows_of_what_the_cache_hid_are_none_whatever_they_hold() -> None:
    rows = torch.stack([told(peaked(0.7) * (i + 1)) for i in range(6)])
    for reused, hidden in ((0, 0), (2, 0), (3, 1), (5, 3)):
        found = last_rows(rows, 4, reused, VOCABULARY)
        assert [row is None for row in found] == [True] * hidden + [False] * (4 - hidden)
        values = [float(row.values[1]) for row in found if row]
        assert values == pytest.approx([-0.7 * place for place in range(3 + hidden, 7)])


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.7, top_k=3)])
def test_logits_that_are_no_numbers_are_no_token_as_everywhere(sampling: SamplingParams) -> None:
    """And none that the engine may draw: its own choice would be text."""
    logits = torch.stack([peaked(0.7), peaked(0.7), peaked(0.7)])
    logits[1, VOCABULARY - 1], logits[2, 0] = math.nan, math.inf
    rows = last_rows(eager.top_logits(logits, VOCABULARY, MOST), 3, 0, VOCABULARY)
    found = [None if row is None else decide(row, at(sampling), VOCABULARY) for row in rows]
    assert found[0] in range(VOCABULARY) and found[1:] == [NO_TOKEN, NO_TOKEN]
    assert token_logprobs(rows[1], 5, 1).chosen.logprob is None


def test_rows_of_a_text_are_remembered_as_far_as_it_is_the_same() -> None:
    one, two, three = (TopRow.of(told(peaked(step))) for step in (0.1, 0.2, 0.3))
    memory = Remembered()
    assert memory.merge([1, 2, 3, 4], [one, two, three]) == [one, two, three]  # of the tokens 2, 3 and 4
    assert memory.merge([1, 2, 3, 5], [None, None]) == [two, None]
    assert memory.merge([1, 2, 3, 5], [three]) == [three]
    assert memory.merge([1, 9, 3, 5], [None, None]) == [None, None]


def test_equals_at_the_end_of_a_row_are_not_decided_by_rounding() -> None:
    """Of float32 quotients, where 0.25 / 0.7 is above its float64 value."""
    logits = torch.full((VOCABULARY,), 0.25)
    logits[0], logits[1] = 3.25, 1.25
    assert decide(TopRow.of(told(logits, 3)), at(SamplingParams(temperature=0.7, top_k=3)), VOCABULARY) is None


@pytest.mark.parametrize("scale", [1.0, 300.0, 1e4])
@pytest.mark.parametrize("temperature", [0.01, 0.8, 3.0])
def test_weights_that_do_not_add_up_raise_nothing(scale: float, temperature: float) -> None:
    """A normaliser is as exact as float32 and a kernel are."""
    for error in (-1e-3, 0.0, 1e-3):
        row = TopRow.of(told(peaked(0.001) * scale + scale))
        sampling = SamplingParams(temperature=temperature, top_p=0.9)
        decide(TopRow(row.values, row.ids, row.normaliser + error), at(sampling), VOCABULARY)


def test_a_row_of_a_padded_vocabulary_is_no_row() -> None:
    row = told(peaked(-0.7)).unsqueeze(0)  # the best is the last id
    assert last_rows(row, 1, 0, VOCABULARY)[0] is not None
    assert last_rows(row, 1, 0, VOCABULARY - 1) == [None]


def test_depth_follows_what_stayed_and_rests_where_nothing_is_decided() -> None:
    depth = Depth(8)
    assert depth.coming() == 8
    depth.learn(8, 2, decided=True)
    assert depth.coming() == 3
    depth.learn(3, 3, decided=True)
    assert depth.coming() == 6
    depth.learn(6, 4, decided=False)  # it goes on behind what stayed
    assert [depth.coming() for _ in range(2)] == [0, 5]
    depth.learn(5, 0, decided=False)
    assert [depth.coming() for _ in range(2)] == [0, 1]
    depth.learn(1, 0, decided=False)
    assert [depth.coming() for _ in range(4)] == [0, 0, 0, 1]
    depth.learn(1, 1, decided=True)
    assert depth.coming() == 2
