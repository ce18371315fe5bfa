"""What an engine that verifies drafts itself is asked, and how its rounds are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.installed import tensorrt_llm_double
from trtspec.executors.tensorrt_llm.engine_spec import FolderSpec
from trtspec.executors.tensorrt_llm.loop.by_engine import EngineVerifier
from trtspec.types import Request, SamplingParams

ASK = Request("a", (5, 6), 20, eos_ids=frozenset({9}), seed=3)
SAMPLED = SamplingParams(temperature=0.5, top_k=7, min_tokens=4, presence_penalty=0.5)


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


def verifier(**changes: Any) -> EngineVerifier:
    return EngineVerifier(replace(ASK, **changes), 0, 100, 104)


def result(*ids: int, reason: str = "NOT_FINISHED", accepted: int | None = None) -> Any:
    metrics = SimpleNamespace(speculative_decoding=SimpleNamespace(total_accepted_draft_tokens=accepted))
    return SimpleNamespace(
        output_token_ids=[list(ids)],
        finish_reasons=[SimpleNamespace(name=reason)],
        request_perf_metrics=None if accepted is None else metrics,
    )


def test_a_round_is_a_request_of_its_own_by_the_rules_of_the_first() -> None:
    made = verifier(sampling=SAMPLED).arguments([5, 6, 7], [8, 9], 0.0)
    assert made["input_token_ids"] == [5, 6, 7] and made["max_tokens"] == 3 and not made["streaming"]
    assert made["end_id"] == 9
    sampling = made["sampling_config"]
    assert sampling["min_tokens"] == 3 and sampling["prompt_ignore_length"] == 2 and sampling["top_k"] == 7
    assert made["external_draft_tokens_config"] == {"tokens": [8, 9], "certain": 104}
    after = verifier(sampling=SAMPLED).arguments([5, 6, 7, 8, 9, 10], (), 0.0)
    assert "external_draft_tokens_config" not in after and after["max_tokens"] == 1
    assert after["sampling_config"]["seed"] != sampling["seed"]
    assert after["sampling_config"]["min_tokens"] == 0


def test_greedy_drafts_need_no_logits() -> None:
    made = verifier().arguments([5, 6, 7], [8], 0.0)
    assert made["external_draft_tokens_config"] == {"tokens": [8], "certain": None}


def test_certain_drafts_can_hardly_be_doubted() -> None:
    """A probability of exactly 1 could be rejected by a uniform number of 1, with nothing left to draw from."""
    from trtspec.executors.tensorrt_llm.bindings import make_request

    made = make_request(verifier(sampling=SAMPLED).arguments([5, 6, 7], [8, 9], 0.0), 104)
    law = made.external_draft_tokens_config.logits.softmax(1)
    assert tuple(law.shape) == (2, 104)
    for row, token in enumerate((8, 9)):
        assert 1 - 1e-6 < float(law[row, token]) < 1
        assert 0 < float(law[row, 50]) < 1e-8


@pytest.mark.parametrize(
    ("found", "emitted", "accepted"),
    [
        (result(7, 8, 3), [7, 8, 3], 2),
        (result(4), [4], 0),
        (result(7, 8, 9, 3), [7, 8, 9, 3], 3),
        (result(7, reason="END_ID"), [7, 9], 1),
        (result(7, 8, reason="END_ID"), [7, 8, 9], 3),
        (result(reason="END_ID"), [9], 0),
        (result(7, 8, reason="STOP_WORDS"), [7, 8], 2),
    ],
)
def test_what_stays_of_a_draft(found: Any, emitted: list[int], accepted: int) -> None:
    """With the end of the text, which the runtime keeps to itself, and without tokens that are none."""
    verdict = verifier().read([5, 6], [7, 8, 9], found)
    assert list(verdict.emitted) == emitted and verdict.accepted == accepted and verdict.decided


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (result(7, 100), "the engine drew the token 100, and the vocabulary has 100"),
        (result(reason="LENGTH"), "the engine ended a round without any token (LENGTH)"),
    ],
)
def test_what_is_no_token_ends_the_request(found: Any, told: str) -> None:
    verdict = verifier().read([5, 6], [7, 8], found)
    assert not verdict.emitted and str(verdict.fault) == told


def test_it_is_told_where_the_runtime_counted_otherwise() -> None:
    read = verifier().read
    assert read([5, 6], [7, 8], result(7, 3, accepted=1)).doubt is None
    assert read([5, 6], [7, 8], result(7, 8, reason="STOP_WORDS", accepted=1)).doubt is None
    assert read([5, 6], [7, 8], result(7, 3, accepted=2)).doubt == ("1 drafted tokens came, and the runtime accepted 2")


@pytest.mark.parametrize(("tp", "width"), [(1, 101), (2, 102), (4, 104)])
def test_rows_of_logits_are_padded_for_all_ranks(tp: int, width: int) -> None:
    assert FolderSpec("1.2.1", "engine", tp, 1, 10, 4, 101).logits_width == width
