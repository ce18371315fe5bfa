"""What a drafter draws: from which law, over whose ids, and where it draws nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fake_gpu import FakeGpu, OnGpu, on_gpu
from tests.plans import decode_row
from trtspec.decoding.candidates import drawn
from trtspec.decoding.draft import Draft, merged
from trtspec.decoding.drawing import draw
from trtspec.decoding.edits import Editor
from trtspec.decoding.growing import _spread
from trtspec.decoding.rng import Lane
from trtspec.decoding.sampling import NO_TOKEN, ChoiceRows, choose, process
from trtspec.types import Request, SamplingParams

WARM = SamplingParams(0.7, top_k=3)
LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, 1.5]])


def rows_of(*sampling: SamplingParams, seed: int = 0) -> ChoiceRows:
    count = len(sampling)
    return ChoiceRows(sampling, list(range(seed, seed + count)), [4] * count, [0] * count)


def test_the_law_is_the_processed_one_and_the_noise_the_drafters_own() -> None:
    rows = rows_of(*[WARM] * 2_000)
    logits = LOGITS.expand(2_000, -1)
    drawn = draw(logits, rows, None, 5)
    law = process(LOGITS, [WARM]).softmax(dim=1)
    assert torch.equal(drawn.probs, law.expand(2_000, -1))
    shares = torch.bincount(drawn.tokens, minlength=5) / 2_000
    assert shares.tolist() == pytest.approx(law[0].tolist(), abs=0.05)
    own = ChoiceRows(rows.sampling, rows.seeds, rows.positions, rows.choices, lane=Lane.DRAFT)
    assert torch.equal(drawn.tokens, choose(logits, own))
    assert not torch.equal(drawn.tokens, choose(logits, rows)), "the target's noise was used"


def test_ids_are_the_targets_and_no_other_token_has_a_probability() -> None:
    ids = torch.tensor([7, 1, 4, 0, 9])
    drawn = draw(LOGITS.expand(300, -1), rows_of(*[SamplingParams(1.0)] * 300), ids, 12)
    plain = draw(LOGITS.expand(300, -1), rows_of(*[SamplingParams(1.0)] * 300), None, 5)
    assert set(drawn.tokens.tolist()) <= set(ids.tolist())
    assert torch.equal(drawn.probs[:, ids], plain.probs)
    assert drawn.probs.shape == (300, 12) and drawn.probs[0].count_nonzero() == 5


def test_a_drafter_that_knows_all_tokens_in_another_order_draws_the_targets_ids() -> None:
    ids = torch.tensor([3, 1, 4, 0, 2])
    certain = torch.full((1, 5), -50.0)
    certain[0, 2] = 50.0
    found = draw(certain, rows_of(SamplingParams(1.0)), ids, 5)
    assert found.tokens.tolist() == [4] and found.probs.argmax(dim=1).tolist() == [4]


@pytest.mark.parametrize(("width", "vocabulary"), [(8, 5), (5, 8)])
def test_padding_of_either_model_is_never_drawn(width: int, vocabulary: int) -> None:
    """The padded ids of the wider drafter are its best ones; the narrower one knows less than the target emits."""
    logits = torch.full((200, width), 50.0)
    logits[:, :5] = LOGITS
    drawn = draw(logits, rows_of(*[SamplingParams(1.0)] * 200), None, vocabulary)
    assert int(drawn.tokens.max()) < 5
    assert drawn.probs.shape == (200, vocabulary) and not drawn.probs[:, 5:].any()


def test_edits_are_the_drafters_too_with_the_history_of_the_path() -> None:
    """A word of two tokens is forbidden after the first, which the path holds; a penalty counts it there, too."""
    sampling = SamplingParams(1.0, bad_words=((3, 0),), presence_penalty=2.0)
    row = decode_row(Request("a", (1, 2), 9, sampling))
    edits = [Editor().edits(row, path, LOGITS) for path in ((), (3,))]
    rows = ChoiceRows([sampling] * 2, [0, 0], [2, 3], [0, 0], edits)
    probs = draw(LOGITS.expand(2, -1), rows, None, 5).probs
    assert probs[0, 0] > 0 and probs[1, 0] == 0
    before, after = (probs[:, 3] / probs[:, 4]).tolist()
    assert after == pytest.approx(math.exp(-2.0) * before, rel=1e-5)


def test_greedy_rows_take_the_best_and_have_no_law() -> None:
    drawn = draw(LOGITS.expand(2, -1), rows_of(SamplingParams(), WARM), None, 5)
    assert drawn.tokens[0] == 0 and not drawn.probs[0].any()
    assert drawn.probs[1].sum().item() == pytest.approx(1.0)


def test_nothing_is_drawn_from_logits_that_are_no_numbers_or_where_all_is_forbidden() -> None:
    sampling = SamplingParams(1.0, logit_bias=tuple((token, -math.inf) for token in range(5)))
    edits = Editor().edits(decode_row(Request("a", (1,), 9, sampling)), (), LOGITS)
    rows = ChoiceRows([WARM, SamplingParams(), sampling], [1, 2, 3], [1] * 3, [0] * 3, [None, None, edits])
    logits = LOGITS.repeat(3, 1)
    logits[:2, 2] = math.nan
    drawn = draw(logits, rows, None, 5)
    assert drawn.tokens.tolist() == [NO_TOKEN] * 3 and not drawn.probs.any()


def test_laws_stay_on_the_device_where_they_were_drawn_and_no_copy_to_it_waits() -> None:
    """They are as large as the vocabulary, and the target's are there, too. Choosing waits, for what it must count."""
    gpu = FakeGpu()
    with gpu:
        found = drawn(on_gpu(LOGITS.expand(3, -1).clone()), rows_of(WARM, SamplingParams(), WARM), None, 8)
        assert isinstance(found.probs, OnGpu)
        assert not isinstance(found.tokens, OnGpu) and not isinstance(found.logprobs, OnGpu)
        assert set(gpu.waits) == {"nonzero", "cpu"}
        gpu.waits.clear()
        draft = replace(Draft.chains([[1], [2], [3]]), probs=found.probs.unsqueeze(1))
        mixed = merged(draft.spread([2, None, 0]), Draft.chains([[4, 5], [6], []]), torch.tensor([True, False, True]))
        assert isinstance(mixed.probs, OnGpu) and gpu.waits == []
        spread = _spread(found, np.array([0, 1, 3]), 4, 1)
        assert isinstance(spread.probs, OnGpu) and gpu.waits == []
    assert mixed.probs.as_subclass(Tensor)[[0, 2], 0].tolist() == found.probs.as_subclass(Tensor)[[2, 0]].tolist()
    assert mixed.tokens.tolist() == [[3, 0], [6, 0], [1, 0]]
    assert spread.probs.as_subclass(Tensor)[2].sum() == 0 and len(spread.probs) == 4


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_scores_that_nothing_truncates_are_those_of_a_truncation_that_keeps_all(bad: float | None) -> None:
    """Bit by bit, rows without a law included."""
    logits = torch.cat([LOGITS, -LOGITS])
    if bad is not None:
        logits[0, 2] = bad
    plain, cut = (process(logits, [SamplingParams(0.7, top_k=k)] * 2) for k in (0, 5))
    assert torch.equal(plain.view(torch.int32), cut.view(torch.int32))
