"""Rejection and typical acceptance in an engine: the rest of a pass does not notice by which rule a token stayed.

Cases 9 to 11, 13, 19, 28, 30, 42, 65, 86 and 88 of the collected bug reports, for rules other than the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from tests.drafters import heads, whole_model
from tests.scripted import Law, Result, Texts, drive, greedy, hashed_law, scripted_engine
from trtspec.decoding.acceptance import rule
from trtspec.decoding.drafting import Drafter
from trtspec.decoding.engine import Engine
from trtspec.decoding.proposer import make_proposer
from trtspec.errors import EngineFault
from trtspec.speculative import SpeculativeConfig, from_dict
from trtspec.types import Finish, FinishReason, Request, SamplingParams

LAW, OTHER = (lru_cache(maxsize=None)(hashed_law(salt=salt)) for salt in (0, 1))
WARM = SamplingParams(0.8)
REJECTION = from_dict({"method": "draft_model", "num_speculative_tokens": 4, "acceptance": "rejection"})
TYPICAL = from_dict({"method": "medusa", "num_speculative_tokens": 3, "acceptance": "typical"})
RULES = pytest.mark.parametrize("settings", [REJECTION, TYPICAL], ids=["rejection", "typical"])


def target(prefix: Sequence[int]) -> Sequence[float]:
    return LAW(tuple(prefix))


def near(prefix: Sequence[int]) -> Sequence[float]:
    """A law that is like the target's and not the same."""
    return [a + 0.4 * b for a, b in zip(LAW(tuple(prefix)), OTHER(tuple(prefix)), strict=True)]


def engine_of(settings: SpeculativeConfig, law: Law = target, drafting: Law = near, **more: bool) -> Engine:
    texts = Texts()
    drafter: Drafter = heads(drafting, texts, 3) if settings is TYPICAL else whole_model(drafting, texts)
    proposer = make_proposer(settings, drafter)
    engine, _ = scripted_engine(law, proposer, texts=texts, acceptance=rule(settings), **more)
    return engine


def asked(name: str, tokens: int = 40, seed: int = 1, sampling: SamplingParams = WARM, **more: object) -> Request:
    return Request(name, (4, 2, 9), tokens, sampling, seed=seed, max_draft_tokens=4, **more)


@pytest.mark.parametrize("prefix_sharing", [True, False])
def test_a_rejected_token_and_what_was_scored_after_it_survive_nowhere(prefix_sharing: bool) -> None:
    """The scripted runner asserts that each pass is fed committed tokens only; all fates of a draft of four occur."""
    engine = engine_of(REJECTION, prefix_sharing=prefix_sharing)
    results = drive(engine, [asked(str(i), 120, i) for i in range(2)], join_every=2)
    passes = [item for result in results.values() for item in result.passes if item.drafted == 4]
    assert {item.accepted for item in passes} == {0, 1, 2, 3, 4}
    assert all(item.emitted == item.accepted + 1 for item in passes if not item.cut)


@RULES
def test_a_seed_gives_one_text_and_another_seed_another(settings: SpeculativeConfig) -> None:
    texts = [drive(engine_of(settings), [asked("a", seed=seed)])["a"].ids for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1] and len({tuple(text) for text in texts}) == 4


@RULES
def test_log_probabilities_are_those_of_the_tokens_wherever_they_came_from(settings: SpeculativeConfig) -> None:
    result = drive(engine_of(settings), [asked("a", logprobs=0)])["a"]
    assert result.stats.accepted > 0
    told = [item.chosen for item in result.outputs[0].logprobs]
    assert [item.token_id for item in told] == result.ids
    text = [4, 2, 9, *result.ids]
    laws = [torch.tensor(target(text[:end])).log_softmax(dim=0) for end in range(3, len(text))]
    expected = [law[token].item() for token, law in zip(result.ids, laws, strict=True)]
    assert [item.logprob for item in told] == pytest.approx(expected, abs=1e-5)


@RULES
def test_an_end_inside_an_accepted_run_is_the_end(settings: SpeculativeConfig) -> None:
    """Wherever in a pass it comes."""
    whole = drive(engine_of(settings), [asked("a", 40)])["a"].ids
    for end in range(0, 16, 2):
        result = drive(engine_of(settings), [asked("a", 40, eos_ids=frozenset({end}))])["a"]
        kept = whole.index(end) + 1 if end in whole else 40
        assert result.ids == whole[:kept]
        assert result.finish == (Finish(FinishReason.EOS, end) if end in whole else Finish(FinishReason.LENGTH))


@pytest.mark.parametrize("tokens", range(1, 12))
def test_exactly_max_tokens_come_back(tokens: int) -> None:
    result = drive(engine_of(REJECTION, drafting=target), [asked("a", tokens)])["a"]
    assert len(result.ids) == tokens and result.finish == Finish(FinishReason.LENGTH)
    assert result.stats.accepted == result.stats.drafted


@RULES
def test_greedy_rows_beside_sampled_ones_keep_their_text_and_one_token_laws_are_greedy(
    settings: SpeculativeConfig,
) -> None:
    best, narrow = SamplingParams(), SamplingParams(1.0, top_k=1)
    requests = [asked(str(i), 30, i, (best, narrow, WARM)[i % 3]) for i in range(6)]
    results = drive(engine_of(settings), requests, join_every=1)
    expected = greedy(target, (4, 2, 9), 30)
    assert all(results[str(i)].ids == expected for i in range(6) if i % 3 < 2)
    assert all(results[str(i)].ids != expected for i in (2, 5))


@pytest.mark.parametrize("sampling", [WARM, SamplingParams(1.0, top_k=1), SamplingParams(0.7, top_p=0.8, min_p=0.05)])
def test_a_drafter_with_the_targets_law_is_never_rejected(sampling: SamplingParams) -> None:
    stats = drive(engine_of(REJECTION, drafting=target), [asked("a", 101, sampling=sampling)])["a"].stats
    assert stats.accepted == stats.drafted == 80 and stats.decode_passes == 20


@RULES
def test_logits_that_are_no_numbers_end_their_request_alone(settings: SpeculativeConfig) -> None:
    def broken(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16 if prefix[0] == 15 and len(prefix) > 9 else target(prefix)

    bad = replace(asked("bad"), prompt=(15, 2))
    good = [asked(str(i), 25, i) for i in range(3)]
    results = drive(engine_of(settings, broken), [*good[:1], bad, *good[1:]])
    assert isinstance(results["bad"].error, EngineFault)
    assert all(token < 16 for token in results["bad"].ids) and len(results["bad"].ids) <= 8
    for request in good:
        assert len(results[request.request_id].ids) == 25
        assert results[request.request_id].ids == alone(settings, request).ids


def alone(settings: SpeculativeConfig, request: Request) -> Result:
    return drive(engine_of(settings), [request])[request.request_id]


def test_a_drafter_that_says_no_numbers_drafts_nothing_and_the_law_is_the_targets() -> None:
    """Without drafts, what follows is drawn with the target's noise: the text of plain decoding."""

    def silent(prefix: Sequence[int]) -> Sequence[float]:
        return [math.nan] * 16

    request = asked("a")
    result = drive(engine_of(REJECTION, drafting=silent), [request])["a"]
    assert result.stats.drafted == 0
    assert result.ids == drive(engine_of(REJECTION), [replace(request, max_draft_tokens=0)])["a"].ids
