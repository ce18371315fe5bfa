"""Engines that choose with kernels say what engines say that choose with PyTorch: text, log-probabilities, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import pytest

from tests.cases.test_sampling_fields import DRAFTERS, EOS, FIELDS, VOCABULARY, asked, every_field, looping
from tests.cases.test_sampling_fields import plain_fields as plainly
from tests.choosers import CHOOSERS, TWINS, Asked
from tests.drafters import whole_model
from tests.scripted import Law, Result, Texts, drive, hashed_law, random_drafter, scripted_engine
from trtspec.decoding.acceptance import exact, rule
from trtspec.decoding.chooser import HOST, Chooser
from trtspec.decoding.proposer import Proposer, make_proposer
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import EngineFault, InvalidField
from trtspec.executors.embedded.kernel_chooser import KernelChooser
from trtspec.speculative import from_dict
from trtspec.types import Request, SamplingParams

EVERY_CHOOSER = pytest.mark.parametrize(
    "chooser", [CHOOSERS["twins"], pytest.param(CHOOSERS["kernels"], marks=pytest.mark.slow)], ids=["twins", "kernels"]
)
REJECTION = from_dict({"method": "draft_model", "num_speculative_tokens": 3, "acceptance": "rejection"})


def run(
    chooser: Chooser, requests: Sequence[Request], proposer: Proposer, law: Law = looping, **more: object
) -> dict[str, Result]:
    engine, _ = scripted_engine(
        law,
        proposer,
        vocabulary=VOCABULARY,
        batch=16,
        pass_tokens=12 * 16,
        blocks=1024,
        acceptance=partial(exact, chooser=chooser),
        **more,  # type: ignore[arg-type]
    )
    return drive(engine, requests)


@EVERY_CHOOSER
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_field_has_the_text_of_plain_decoding(name: str, chooser: Chooser) -> None:
    requests, expected = every_field(1), plainly()
    texts = [[*request.prompt, *expected[field].ids] for field, request in requests.items()]
    named = [replace(request, request_id=field) for field, request in requests.items()]
    results = run(chooser, named, DRAFTERS[name](texts))
    assert {field: results[field].ids for field in FIELDS} == {field: expected[field].ids for field in FIELDS}
    assert sum(result.stats.accepted for result in results.values()) > 0


@EVERY_CHOOSER
def test_what_is_told_beside_the_text_is_the_same(chooser: Chooser) -> None:
    """Log-probabilities of output and prompt, several outputs, the passes, and requests that join later."""
    kinds = [SamplingParams(), SamplingParams(1.0), SamplingParams(0.8, top_p=0.9)]
    requests = [
        asked(kind, 4, request_id=str(i), seed=i, n=1 + i % 2, max_tokens=12, logprobs=2, prompt_logprobs=1 + i % 2)
        for i, kind in enumerate(kinds)
    ]
    told = [run(choosing, requests, random_drafter(looping, 4)) for choosing in (chooser, HOST)]
    assert told[0] == told[1]


@EVERY_CHOOSER
def test_faults_end_the_same_requests_after_the_same_text(chooser: Chooser) -> None:
    """Logits that are no numbers, where they are edited and where not, and requests that forbid everything."""

    def broken(prefix: Sequence[int]) -> Sequence[float]:
        logits = looping(prefix)
        if prefix[0] == 9 and len(prefix) > 10:
            logits[6] = math.nan
        return logits

    every = tuple((token,) for token in range(VOCABULARY) if token != EOS)
    kinds = {
        "greedy": SamplingParams(),
        "sampled": SamplingParams(0.7, top_k=3),
        "hidden": SamplingParams(bad_words=((6,),)),
        "warm": SamplingParams(1.0),
    }
    failing = {"prompt": (9, 2, 3, 9, 2, 3), "max_tokens": 12, "eos_ids": frozenset()}
    bad = [asked(kind, 4, request_id=name, **failing) for name, kind in kinds.items()]
    nothing = asked(SamplingParams(bad_words=every, min_tokens=3), 4, request_id="nothing")
    good = asked(SamplingParams(0.7), 4, request_id="good", max_tokens=12)
    results = run(chooser, [*bad, nothing, good], random_drafter(looping, 4), broken)
    expected = run(HOST, [*bad, nothing, good], random_drafter(looping, 4), broken)
    for name, result in results.items():
        assert (result.ids, type(result.error)) == (expected[name].ids, type(expected[name].error))
    assert all(isinstance(results[name].error, EngineFault) for name in kinds)
    assert isinstance(results["nothing"].error, InvalidField) and results["good"].error is None


@EVERY_CHOOSER
def test_rejection_in_an_engine_says_the_same(chooser: Chooser) -> None:
    target, near = (lru_cache(maxsize=None)(hashed_law(salt=salt)) for salt in (0, 1))

    def mixed(prefix: Sequence[int]) -> Sequence[float]:
        return [a + 0.4 * b for a, b in zip(target(tuple(prefix)), near(tuple(prefix)), strict=True)]

    kinds = [SamplingParams(0.8), SamplingParams(1.0, top_k=5), SamplingParams(), SamplingParams(0.9, min_p=0.1)]
    requests = [
        Request(str(i), (4, 2, 9), 16, kind, seed=i, max_draft_tokens=3) for i, kind in enumerate([*kinds, kinds[0]])
    ]
    said = []
    for choosing in (Asked(chooser), Asked(HOST)):
        texts = Texts()
        proposer = make_proposer(REJECTION, whole_model(mixed, texts))
        engine, _ = scripted_engine(
            lambda prefix: target(tuple(prefix)), proposer, texts=texts, acceptance=rule(REJECTION, choosing)
        )
        said.append(drive(engine, requests, join_every=2))
        assert min(choosing.passes["exact"], choosing.passes["rejection"]) > 5
    assert said[0] == said[1]
    assert {item.accepted for result in said[0].values() for item in result.passes} == {0, 1, 2, 3}


def test_the_kernels_choose_in_an_engine() -> None:
    """Few tokens of few requests: kernels are interpreted here."""
    requests = [
        asked(kind, 3, request_id=str(i), seed=i, max_tokens=5)
        for i, kind in enumerate([SamplingParams(), SamplingParams(0.7), SamplingParams(presence_penalty=1.0)])
    ]
    for make in (NoProposer, partial(random_drafter, looping, 2)):
        assert run(CHOOSERS["kernels"], requests, make()) == run(HOST, requests, make())


def test_groups_of_a_few_places_change_nothing() -> None:
    requests = [asked(SamplingParams(0.7, top_p=0.8), 4, request_id=str(i), seed=i, max_tokens=12) for i in range(4)]
    few = KernelChooser(TWINS, most_processed=2 * VOCABULARY)
    assert run(few, requests, random_drafter(looping, 4)) == run(HOST, requests, random_drafter(looping, 4))
