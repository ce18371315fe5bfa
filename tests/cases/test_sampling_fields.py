"""Every sampling field does the same at any depth of speculation, with any drafter, right or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from tests.scripted import (
    Law,
    Output,
    ScriptedProposer,
    drive,
    greedy,
    hashed_law,
    random_drafter,
    right_drafter,
    scripted_engine,
)
from trtspec.decoding.proposer import Proposer
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import EngineFault, InvalidField
from trtspec.types import FinishReason, Request, SamplingParams, TokenLogprob, TokenLogprobs

VOCABULARY = 16
EOS = 15
TOKENS = 36
PROMPT = (1, 2, 3, 1, 2, 3)
NOISE = hashed_law(VOCABULARY, salt=8)


def looping(prefix: Sequence[int]) -> list[float]:
    """Wants to repeat itself with period three, and yields where penalties take two off."""
    logits = [value / 2 for value in NOISE(prefix)]
    logits[prefix[-3] if len(prefix) > 2 else 7] += 2.0
    return logits


Drafter = Callable[[Sequence[Sequence[int]]], Proposer]
"""Made for the texts, prompts and outputs, that plain decoding gives."""


def along(texts: Sequence[Sequence[int]], depth: int = 5) -> ScriptedProposer:
    """Drafts exactly what plain decoding said, so that whole runs are accepted, with a wrong sibling at each depth."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        text = next(text for text in texts if list(text[: len(tokens)]) == list(tokens))
        chain = text[len(tokens) : len(tokens) + min(depth, limit)]
        drawn = [token for right in chain for token in ((right + 1) % VOCABULARY, right)]
        return drawn, [2 * (i // 2) - 1 for i in range(len(drawn))]

    return ScriptedProposer(draw, 2 * depth)


DRAFTERS: dict[str, Drafter] = {
    "ngram": lambda texts: NgramProposer(4),
    "unedited chain": lambda texts: right_drafter(looping, 4),
    "random trees": lambda texts: random_drafter(looping, 4),
    "right trees": along,
}
EVERY_DRAFTER = pytest.mark.parametrize("name", DRAFTERS)

SAMPLED = SamplingParams(0.7)
FIELDS: dict[str, tuple[SamplingParams, SamplingParams]] = {
    "temperature": (SamplingParams(), SamplingParams(1.5)),
    "top_k": (SAMPLED, replace(SAMPLED, top_k=2)),
    "top_p": (SAMPLED, replace(SAMPLED, top_p=0.5)),
    "min_p": (SAMPLED, replace(SAMPLED, min_p=0.4)),
    "repetition_penalty": (SamplingParams(), SamplingParams(repetition_penalty=2.0)),
    "presence_penalty": (SamplingParams(), SamplingParams(presence_penalty=2.0)),
    "frequency_penalty": (SamplingParams(), SamplingParams(frequency_penalty=0.7)),
    "logit_bias": (SamplingParams(), SamplingParams(logit_bias=((2, -100.0), (9, 1.0)))),
    "bad_words": (SamplingParams(), SamplingParams(bad_words=((3,),))),
    "bad_words of several tokens": (SamplingParams(), SamplingParams(bad_words=((2, 3), (3, 1, 2, 4)))),
    "min_tokens": (SamplingParams(logit_bias=((EOS, 9.0),)), SamplingParams(logit_bias=((EOS, 9.0),), min_tokens=12)),
    "sampled with penalties": (SAMPLED, replace(SAMPLED, repetition_penalty=1.5, frequency_penalty=0.5, top_p=0.9)),
}


def asked(sampling: SamplingParams, depth: int = 0, **changes: object) -> Request:
    request = Request("a", PROMPT, TOKENS, sampling, seed=21, eos_ids=frozenset({EOS}), max_draft_tokens=depth)
    return replace(request, **changes)


def run(requests: Sequence[Request], proposer: Proposer | None = None, law: Law = looping) -> list[Output]:
    """All requests in one batch, whatever their names; speculative where a proposer is given."""
    named = [replace(request, request_id=str(i)) for i, request in enumerate(requests)]
    engine, _ = scripted_engine(
        law, proposer or NoProposer(), vocabulary=VOCABULARY, batch=len(named), pass_tokens=12 * len(named), blocks=1024
    )
    results = drive(engine, named)
    assert all(result.error is None for result in results.values())
    return [results[request.request_id].outputs[0] for request in named]


def plainly(requests: Sequence[Request], law: Law = looping) -> list[Output]:
    """Each request alone, without speculation."""
    return [run([replace(request, max_draft_tokens=0)], law=law)[0] for request in requests]


def texts_of(requests: Sequence[Request], outputs: Sequence[Output]) -> list[list[int]]:
    return [[*request.prompt, *output.ids] for request, output in zip(requests, outputs, strict=True)]


def every_field(which: int, depth: int = 5) -> dict[str, Request]:
    """A request for each field, without it (0) or with it (1); prompts differ, and few outputs end early."""
    ends = {"min_tokens": frozenset({EOS})}
    return {
        name: asked(kinds[which], depth, prompt=(i, *PROMPT), eos_ids=ends.get(name, frozenset()))
        for i, (name, kinds) in enumerate(FIELDS.items())
    }


@cache
def plain_fields() -> dict[str, Output]:
    return dict(zip(FIELDS, plainly(list(every_field(1).values())), strict=True))


def test_every_field_shows() -> None:
    for name, without in zip(FIELDS, run(list(every_field(0).values())), strict=True):
        assert plain_fields()[name].ids != without.ids, name


@EVERY_DRAFTER
@pytest.mark.parametrize("depth", [1, 5])
def test_speculation_and_neighbours_change_no_field(name: str, depth: int) -> None:
    requests = list(every_field(1, depth).values())
    outputs = run(requests, DRAFTERS[name](texts_of(requests, list(plain_fields().values()))))
    for field, output in zip(FIELDS, outputs, strict=True):
        plain = plain_fields()[field]
        assert (output.ids, output.finish) == (plain.ids, plain.finish), field
        if name == "right trees":
            assert output.stats.acceptance_rate == 1.0, f"{field} acts on a drafted run other than on plain decoding"
            assert output.stats.accepted > 3, field


def test_preemption_changes_no_field() -> None:
    """A pool for a third of the load: what was counted for a sequence outlives its blocks."""
    requests = {name: replace(request, request_id=name) for name, request in every_field(1).items()}
    engine, _ = scripted_engine(
        looping, random_drafter(looping, 4), vocabulary=VOCABULARY, batch=len(requests), blocks=40, block_tokens=4
    )
    results = drive(engine, list(requests.values()))
    assert engine.stats().preemptions > 2
    for name in FIELDS:
        assert results[name].ids == plain_fields()[name].ids, name


def by_hand(sampling: SamplingParams, count: int) -> list[int]:
    """Greedy decoding with penalties, bias and forbidden tokens, written down without tensors."""
    output: list[int] = []
    for _ in range(count):
        logits = looping([*PROMPT, *output])
        for token, value in sampling.logit_bias:
            logits[token] += value
        for token in {*PROMPT, *output}:
            logits[token] *= sampling.repetition_penalty if logits[token] < 0 else 1 / sampling.repetition_penalty
            times = output.count(token)
            logits[token] -= sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
        for (token,) in sampling.bad_words:
            logits[token] = -math.inf
        if len(output) < sampling.min_tokens:
            logits[EOS] = -math.inf
        output.append(max(range(VOCABULARY), key=logits.__getitem__))
        if output[-1] == EOS:
            break
    return output


def test_the_text_with_all_edits_is_that_of_an_independent_loop() -> None:
    sampling = SamplingParams(
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias=((4, 0.5), (EOS, 1.2)),
        bad_words=((3,), (8,)),
        min_tokens=15,
    )
    expected = by_hand(sampling, TOKENS)
    assert 15 < len(expected) < TOKENS and expected[-1] == EOS
    assert plainly([asked(sampling)])[0].ids == expected


@EVERY_DRAFTER
def test_a_frequency_penalty_pushes_and_pulls(name: str) -> None:
    requests = [
        asked(SamplingParams(frequency_penalty=value), 4, prompt=(i, *PROMPT))
        for i, value in enumerate((-2.0, 0.0, 2.0))
    ]
    plain = plainly(requests)
    outputs = run(requests, DRAFTERS[name](texts_of(requests, plain)))
    assert [output.ids for output in outputs] == [output.ids for output in plain]
    pulled, _, pushed = (max(map(output.ids.count, range(VOCABULARY))) for output in outputs)
    assert pulled > 2 * pushed
    assert outputs[0].ids != outputs[1].ids != outputs[2].ids


@EVERY_DRAFTER
def test_a_token_biased_away_appears_nowhere(name: str) -> None:
    """Drafted runs, the bonus after them, and the token of the prefill."""
    (plain,) = plainly([asked(SamplingParams())])
    favourite = max(range(VOCABULARY), key=plain.ids.count)
    request = asked(SamplingParams(logit_bias=((favourite, -100.0),)), 4)
    (expected,) = plainly([request])
    (output,) = run([request], DRAFTERS[name](texts_of([request], [expected])))
    assert output.ids == expected.ids and favourite not in output.ids and len(output.ids) == TOKENS


def test_the_history_of_a_penalty_grows_inside_the_drafted_run() -> None:
    """Token 3 is worth 3, 2, 1 and so on as it is said, token 4 always 1.2: of a draft of three only one is right."""

    def law(prefix: Sequence[int]) -> list[float]:
        return [3.0 if token == 3 else 1.2 if token == 4 else -9.0 for token in range(VOCABULARY)]

    drafter = ScriptedProposer(lambda tokens, limit: ([3, 3, 3][:limit], [-1, 0, 1][:limit]))
    request = Request("a", (1,), 10, SamplingParams(frequency_penalty=1.0), max_draft_tokens=3)
    (output,) = run([request], drafter, law)
    assert output.ids[:3] == [3, 3, 4]
    first = output.passes[1]
    assert (first.drafted, first.accepted, first.emitted) == (3, 1, 2)


def ending(prefix: Sequence[int]) -> list[float]:
    """Wants EOS everywhere."""
    return [9.0 if token == EOS else value for token, value in enumerate(NOISE(prefix))]


@pytest.mark.parametrize("drafter", [along, lambda texts: right_drafter(ending, 5)], ids=["right", "always EOS"])
def test_no_end_before_the_minimum_and_the_end_right_after_it(drafter: Drafter) -> None:
    """Drafts of one to five tokens, aligned to the minimum in every way."""
    requests = [
        asked(SamplingParams(min_tokens=minimum), depth, prompt=(minimum, depth))
        for minimum in range(8)
        for depth in range(1, 6)
    ]
    plain = plainly(requests[::5], ending)
    assert [(len(output.ids), output.ids.index(EOS)) for output in plain] == [(n + 1, n) for n in range(8)]
    everything = run(requests, law=ending)
    for output, speculative in zip(
        everything, run(requests, drafter(texts_of(requests, everything)), ending), strict=True
    ):
        assert (output.ids, output.finish) == (speculative.ids, speculative.finish)
    assert [output.ids for output in everything[::5]] == [output.ids for output in plain]


def test_the_minimum_counts_the_output_and_not_the_prompt() -> None:
    request = Request("a", (1,) * 200, 40, SamplingParams(min_tokens=10), eos_ids=frozenset({EOS}))
    ended, ignored = run([request, replace(request, eos_ids=frozenset())], law=ending)
    assert len(ended.ids) == 11 and ended.ids.index(EOS) == 10
    assert ignored.ids == [EOS] * 40, "the last id of the vocabulary is free where nothing ends the output"


@EVERY_DRAFTER
def test_logprobs_are_complete_and_equal_at_any_depth(name: str) -> None:
    """Those of the model, whatever the penalties made of them; bonus tokens and those after a rejection included."""
    sampling = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.4)
    requests = [
        asked(sampling, 5, prompt=(*PROMPT, top), logprobs=top, prompt_logprobs=prompt_top)
        for top in (0, 1, 5)
        for prompt_top in (None, 2)
    ]
    plain = run(requests)
    texts = texts_of(requests, plain)
    outputs = run(requests, DRAFTERS[name](texts))
    for request, text, output in zip(requests, texts, outputs, strict=True):
        assert [*request.prompt, *output.ids] == text
        prompt, top, prompt_top = len(request.prompt), request.logprobs, request.prompt_logprobs
        assert output.logprobs == [told(text, place, top) for place in range(prompt, len(text))]
        if prompt_top is None:
            assert output.prompt_logprobs == []
        else:
            assert output.prompt_logprobs[0] == TokenLogprobs(TokenLogprob(PROMPT[0], None, None))
            assert output.prompt_logprobs[1:] == [told(text, place, prompt_top) for place in range(1, prompt)]


def told(text: Sequence[int], place: int, top: int) -> TokenLogprobs:
    """What the law says of the token at a place, and of the best there."""
    logits = looping(text[:place])
    total = math.log(sum(math.exp(value) for value in logits))
    order = sorted(range(VOCABULARY), key=lambda token: -logits[token])
    entries = [
        TokenLogprob(token, pytest.approx(logits[token] - total, abs=1e-5), rank)
        for rank, token in enumerate(order, start=1)
    ]
    return TokenLogprobs(entries[order.index(text[place])], tuple(entries[:top]))


def test_logprobs_of_a_long_prompt_come_once_from_all_of_its_chunks() -> None:
    """Beside a decoding neighbour, in passes of twelve tokens; a cancelled or ended output takes none with it."""
    prompt = tuple((i * 7 + i // 5) % VOCABULARY for i in range(50))
    engine, runner = scripted_engine(looping, random_drafter(looping, 4), vocabulary=VOCABULARY, pass_tokens=12)
    requests = [
        replace(asked(SamplingParams(), 4), request_id="b"),
        Request("a", prompt, 20, max_draft_tokens=4, logprobs=1, prompt_logprobs=1),
    ]
    output = drive(engine, requests, join_every=2)["a"].outputs[0]
    text = [*prompt, *output.ids]
    assert output.prompt_logprobs[1:] == [told(text, place, 1) for place in range(1, 50)]
    assert output.logprobs == [told(text, place, 1) for place in range(50, 70)]
    assert sum(len(plan.rows) == 2 and not plan.rows[1].samples for plan in runner.plans) >= 3


def test_logprobs_end_where_the_output_ends() -> None:
    """EOS inside an accepted run: no entry for what came after it."""
    (whole,) = plainly([asked(SamplingParams())])
    plain = whole.ids
    request = asked(SamplingParams(), 5, logprobs=0, eos_ids=frozenset({plain[8]}))
    (output,) = run([request], along([[*PROMPT, *plain]]))
    assert [item.chosen.token_id for item in output.logprobs] == output.ids == plain[: plain.index(plain[8]) + 1]


@EVERY_DRAFTER
def test_a_seed_gives_one_text_and_another_seed_another(name: str) -> None:
    requests = [asked(SamplingParams(2.0), 4, prompt=(*PROMPT, seed % 16), seed=seed) for seed in range(42, 50)]
    same_prompt = [asked(SamplingParams(2.0), seed=seed) for seed in range(42, 50)]
    assert len({tuple(output.ids) for output in run(same_prompt)}) == 8
    plain = plainly(requests[:2]) + run(requests)[2:]
    for _ in range(2):
        outputs = run(requests, DRAFTERS[name](texts_of(requests, plain)))
        assert [output.ids for output in outputs] == [output.ids for output in plain]


def test_a_seed_belongs_to_its_request_and_not_to_a_place_in_the_batch() -> None:
    """First of the batch, sixth, and in the place that another seed has just left."""
    request = replace(asked(SamplingParams(1.0), 4), seed=77)
    others = [replace(request, request_id=f"other {i}", seed=i, max_tokens=5) for i in range(5)]
    texts = []
    for batch in ([request], [*others, request], [*others[:1], request]):
        engine, _ = scripted_engine(looping, random_drafter(looping, 4), batch=1 if len(batch) == 2 else 8)
        texts.append(drive(engine, batch)["a"].ids)
    assert texts[0] == texts[1] == texts[2]


def test_each_row_of_a_mixed_batch_follows_its_own_law() -> None:
    """Token 5 is the likeliest everywhere; only the greedy request says nothing else."""

    def law(prefix: Sequence[int]) -> list[float]:
        return [1.0 + (token == 5) * 0.5 + 0.01 * token for token in range(VOCABULARY)]

    kinds = [SamplingParams(), SamplingParams(0.7, top_k=5), SamplingParams(1.0, top_p=0.9)]
    requests = [asked(kind, 4, max_tokens=60, eos_ids=frozenset(), seed=i) for i, kind in enumerate(kinds)]
    texts = [output.ids for output in run(requests, random_drafter(law, 4), law)]
    assert set(texts[0]) == {5}
    assert set(texts[1]) == {5, 12, 13, 14, 15}
    assert len(set(texts[2])) > 9
    assert texts == [output.ids for output in plainly(requests, law)]


@pytest.mark.parametrize("sampling", [SamplingParams(bad_words=((6,),)), replace(SAMPLED, bad_words=((6,),), top_k=3)])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_masked_nan_ends_its_request_and_no_other(sampling: SamplingParams, bad: float) -> None:
    """The only logit that is no number is that of a forbidden token."""

    def law(prefix: Sequence[int]) -> list[float]:
        logits = looping(prefix)
        if prefix[0] == 9 and len(prefix) >= 12:
            logits[6] = bad
        return logits

    failing = replace(asked(sampling, 4, logprobs=1), request_id="bad", prompt=(9, 2, 3, 9, 2, 3))
    engine, _ = scripted_engine(law, random_drafter(looping, 4), vocabulary=VOCABULARY)
    results = drive(engine, [failing, asked(sampling, 4)])
    assert isinstance(results["bad"].error, EngineFault)
    sound, neighbour = plainly([replace(failing, max_tokens=6), asked(sampling)])
    assert results["bad"].ids == sound.ids and len(results["bad"].outputs[0].logprobs) == 6
    assert results["a"].ids == neighbour.ids


def test_a_request_that_forbids_every_token_fails_and_says_why() -> None:
    every = tuple((token,) for token in range(VOCABULARY) if token != EOS)
    request = asked(SamplingParams(bad_words=every, min_tokens=3), 4)
    engine, _ = scripted_engine(looping, random_drafter(looping, 4), vocabulary=VOCABULARY)
    results = drive(engine, [request, replace(asked(SamplingParams(bad_words=every)), request_id="b")])
    assert isinstance(results["a"].error, InvalidField) and "forbidding every token" in str(results["a"].error)
    assert results["a"].ids == []
    assert results["b"].ids == [EOS] and results["b"].finish is not None
    assert results["b"].finish.reason is FinishReason.EOS


@EVERY_DRAFTER
def test_low_temperatures_are_greedy_and_overflow_nowhere(name: str) -> None:
    kinds = [SamplingParams(temperature) for temperature in (0.0, 1e-6, 1e-5, 1e-3)]
    requests = [asked(kind, 4, eos_ids=frozenset()) for kind in kinds]
    expected = greedy(looping, PROMPT, TOKENS)
    outputs = run(requests, DRAFTERS[name]([[*PROMPT, *expected]]))
    assert [output.ids for output in outputs] == [expected] * 4


def test_truncation_to_one_token_is_greedy_and_drafts_of_it_are_accepted() -> None:
    kinds = [SamplingParams(1.0, top_k=1), SamplingParams(1.0, top_p=1e-6)]
    outputs = run([asked(kind, 4, eos_ids=frozenset()) for kind in kinds], right_drafter(looping, 4))
    assert [output.ids for output in outputs] == [greedy(looping, PROMPT, TOKENS)] * 2
    assert [output.stats.acceptance_rate for output in outputs] == [1.0, 1.0]
