"""Edits of logits: equal to `transformers`' processors at every place, by the history of that place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tests.plans import decode_row
from trtspec.decoding.edits import Editor
from trtspec.decoding.plan import PlanRow
from trtspec.decoding.processors import apply
from trtspec.types import Request, SamplingParams

VOCABULARY = 30
PROMPT = (5, 9, 9, 3)
OUTPUT = (3, 7, 5, 7)
PATHS: Sequence[tuple[int, ...]] = ((), (7,), (2,), (7, 9), (7, 7), (7, 7, 3))
"""Tokens between the output and a place: nothing at the root."""
WORDS = ((11,), (7, 9), (7, 7, 3), (5, 7, 2), (9, 9, 1), (3, 3))


def random_logits(places: int, seed: int = 1) -> Tensor:
    return torch.randn(places, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def edited(editor: Editor, row: PlanRow, path: Sequence[int], logits: Tensor) -> Tensor:
    """Edited logits of one place, [V]."""
    edits = editor.edits(row, path, logits)
    assert edits is not None
    result = logits.clone()
    apply(result[0], edits)
    return result[0]


def at_every_place(sampling: SamplingParams, end_ids: frozenset[int] = frozenset()) -> tuple[Tensor, Tensor]:
    """Raw and edited logits after the output and after each path; paths leave nothing behind."""
    request = Request("a", PROMPT, 50, sampling, eos_ids=end_ids)
    logits, editor, row = random_logits(len(PATHS)), Editor(), decode_row(request, OUTPUT)
    result = torch.stack([edited(editor, row, path, logits[i : i + 1]) for i, path in enumerate(PATHS)])
    again = [edited(editor, row, path, logits[i : i + 1]) for i, path in enumerate(PATHS)]
    assert torch.equal(result, torch.stack(again))
    return logits, result


def by_transformers(logits: Tensor, *processors: object) -> Tensor:
    """Each place by itself, its whole history given."""
    chain = LogitsProcessorList(processors)
    histories = [torch.tensor([[*PROMPT, *OUTPUT, *path]]) for path in PATHS]
    return torch.cat([chain(history, logits[i : i + 1].clone()) for i, history in enumerate(histories)])


@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_repetition_penalty(penalty: float) -> None:
    raw, result = at_every_place(SamplingParams(repetition_penalty=penalty))
    assert torch.equal(result, by_transformers(raw, RepetitionPenaltyLogitsProcessor(penalty)))


def test_bad_words() -> None:
    raw, result = at_every_place(SamplingParams(bad_words=WORDS))
    assert torch.equal(result, by_transformers(raw, NoBadWordsLogitsProcessor([list(word) for word in WORDS])))
    banned = [torch.isneginf(row).nonzero().flatten().tolist() for row in result]
    assert banned == [[2, 9, 11], [3, 9, 11], [11], [11], [3, 9, 11], [3, 11]]


def test_a_word_longer_than_the_history_forbids_nothing() -> None:
    request = Request("a", (5,), 50, SamplingParams(bad_words=((4, 5, 6), (5, 6))))
    logits = random_logits(1)
    assert torch.isneginf(edited(Editor(), decode_row(request), (), logits)).nonzero().tolist() == [[6]]


def test_logit_bias() -> None:
    bias = ((3, -2.5), (29, 4.0))
    raw, result = at_every_place(SamplingParams(logit_bias=bias))
    expected = by_transformers(raw, SequenceBiasLogitsProcessor([[[token], value] for token, value in bias]))
    assert torch.equal(result, expected)


@pytest.mark.parametrize("count", range(4, 9))
def test_min_tokens_forbids_every_end_id_until_the_path_is_long_enough(count: int) -> None:
    """The output has four tokens, so places at depth d have 4 + d before them; the prompt does not count."""
    ends = frozenset({0, 29})
    raw, result = at_every_place(SamplingParams(min_tokens=count), ends)
    expected = by_transformers(raw, MinNewTokensLengthLogitsProcessor(len(PROMPT), count, sorted(ends)))
    assert torch.equal(result, expected)


def test_presence_and_frequency_count_the_output_and_the_path_alone() -> None:
    raw, result = at_every_place(SamplingParams(presence_penalty=0.7, frequency_penalty=-0.4))
    for place, path in enumerate(PATHS):
        for token in range(VOCABULARY):
            count = (*OUTPUT, *path).count(token)
            expected = raw[place, token] - 0.7 * (count > 0) + 0.4 * count
            assert result[place, token] == pytest.approx(expected.item(), abs=1e-5)


def test_all_at_once_in_the_order_of_transformers() -> None:
    sampling = SamplingParams(
        repetition_penalty=1.4, logit_bias=((7, 2.0), (9, -9.0)), bad_words=WORDS, min_tokens=6, frequency_penalty=0.3
    )
    raw, result = at_every_place(sampling, frozenset({0}))
    expected = by_transformers(
        raw,
        SequenceBiasLogitsProcessor([[[7], 2.0], [[9], -9.0]]),
        RepetitionPenaltyLogitsProcessor(1.4),
        NoBadWordsLogitsProcessor([list(word) for word in WORDS]),
        MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, [0]),
    )
    counts = torch.tensor([[(*OUTPUT, *path).count(token) for token in range(VOCABULARY)] for path in PATHS])
    assert torch.allclose(result, expected - 0.3 * counts, atol=1e-5)


def test_a_request_that_asks_for_nothing_has_no_edits() -> None:
    row = decode_row(Request("a", PROMPT, 50, SamplingParams(0.8, top_p=0.9)), OUTPUT)
    assert Editor().edits(row, (7,), random_logits(1)) is None


class Watched(list[int]):
    """Counts the elements that leave it."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        self.read += len(range(*place.indices(len(self)))) if isinstance(place, slice) else 1
        return super().__getitem__(place)


def test_counts_grow_with_what_was_committed_and_read_nothing_twice() -> None:
    sampling = SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25)
    request = Request("a", PROMPT, 50, sampling)
    editor, logits = Editor(), random_logits(1)
    history, output, read = Watched(PROMPT), list[int](), [0]
    for new in ([], [7], [7, 2, 9], [5]):
        output += new
        history += new
        row = decode_row(request, output)
        result = edited(editor, replace(row, history=history), (8, 9), logits)
        assert torch.equal(result, edited(Editor(), row, (8, 9), logits))
        read.append(history.read)
    assert [after - before for before, after in pairwise(read)] == [len(PROMPT), 1, 3, 1]


def test_a_released_sequence_is_forgotten() -> None:
    """Ids do not come back, so this is about memory."""
    request = Request("a", PROMPT, 50, SamplingParams(presence_penalty=1.0))
    editor, logits = Editor(), random_logits(1)
    edited(editor, decode_row(request, OUTPUT, sequence_id=4), (), logits)
    editor.release((4, 9))
    again = edited(editor, decode_row(request, sequence_id=4), (), logits)
    assert torch.equal(again, logits[0]), "counts of a released sequence were kept"
