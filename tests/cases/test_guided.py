"""Guided decoding: the mask acts at every node, whatever is drafted, and the text is that of plain decoding.

Cases 33 to 36 of the collected bug reports, and what 23 to 27 are under a guide.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drafters import heads, stateful, whole_model
from tests.guides import EOS, JSON, SPECIAL, SPELT, Watched, compiled, conforms, spell
from tests.scripted import (
    Law,
    Result,
    ScriptedProposer,
    Texts,
    chain_law,
    drive,
    hashed_law,
    random_drafter,
    right_drafter,
    scripted_engine,
)
from trtspec.decoding.acceptance import rule
from trtspec.decoding.guiding import GuidedText
from trtspec.decoding.proposer import Proposer, make_proposer
from trtspec.decoding.proposers.ngram import NgramProposer
from trtspec.decoding.proposers.none import NoProposer
from trtspec.errors import InvalidField, Unsupported
from trtspec.executors.guides.grammars import CompiledGuide
from trtspec.guides import Guide, GuideKind
from trtspec.speculative import from_dict
from trtspec.types import Finish, FinishReason, Request, SamplingParams

PROMPT = (7, 8, 9)
TOKENS = 60
NOISE = lru_cache(maxsize=None)(hashed_law(salt=3))
REGEX = compiled(GuideKind.REGEX, "(a|b){2,20}(<1+>)?")
WARM = SamplingParams(0.9)
SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": WARM,
    "truncated": SamplingParams(1.2, top_k=6, top_p=0.9),
    "penalised": SamplingParams(0.8, repetition_penalty=1.3, frequency_penalty=0.5, logit_bias=((7, 1.0), (1, -2.0))),
}


def target(prefix: Sequence[int]) -> Sequence[float]:
    """Wants the special token most of all, and what no guide here allows."""
    logits = list(NOISE(tuple(prefix)))
    logits[SPECIAL] += 3.0
    return logits


def asked(name: str = "a", guide: CompiledGuide | None = JSON, depth: int = 5, **changes: object) -> Request:
    request = Request(name, PROMPT, TOKENS, seed=11, eos_ids=frozenset({EOS}), max_draft_tokens=depth, guide=guide)
    return replace(request, **changes)


def run(
    requests: Sequence[Request], proposer: Proposer | None = None, law: Law = target, **more: object
) -> list[Result]:
    watched = Watched(proposer or NoProposer())
    engine, _ = scripted_engine(law, watched, batch=64, pass_tokens=640, blocks=32 * len(requests), **more)
    results = drive(engine, requests)
    guided = [request for request in requests if request.guide is not None]
    assert watched.seen >= sum(len(results[request.request_id].passes) for request in guided)
    return [results[request.request_id] for request in requests]


def plain(request: Request, law: Law = target) -> Result:
    return plainly([request], law)[0]


def plainly(requests: Sequence[Request], law: Law = target) -> list[Result]:
    return run([replace(request, max_draft_tokens=0) for request in requests], law=law)


def guided_law(guide: CompiledGuide, law: Law = target, prompt: Sequence[int] = PROMPT) -> Law:
    """What greedy decoding under a guide follows: the law with everything else far below."""
    request = asked(guide=guide)

    def masked(prefix: Sequence[int]) -> list[float]:
        allowed = GuidedText(request).allowed(prefix[len(prompt) :])
        may = [True] * 16 if allowed is None else allowed
        return [value if able else -9e9 for value, able in zip(law(prefix), may, strict=True)]

    return masked


def violating(text: Sequence[int], at: int) -> ScriptedProposer:
    """Drafts what plain decoding said, but for the token at one place of each draft, which the guide never allows."""

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        chain = [*text[len(tokens) - len(PROMPT) :]][:limit]
        chain[at : at + 1] = [SPECIAL] if at < len(chain) else []
        return chain, list(range(-1, len(chain) - 1))

    return ScriptedProposer(draw, 6)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("at", range(5))
def test_a_drafter_that_violates_the_guide_at_any_place_changes_nothing(at: int, sampling: SamplingParams) -> None:
    """Case 33. Nodes from the violation on are not submitted, so nothing counts them as drafted."""
    request = asked(sampling=sampling)
    expected = plain(request)
    assert conforms(expected.ids) and expected.finish == Finish(FinishReason.EOS, EOS)
    (found,) = run([request], violating(expected.ids, at))
    assert found.ids == expected.ids and found.finish == expected.finish
    assert all(item.drafted <= at for item in found.passes)
    assert found.stats.accepted == found.stats.drafted and (found.stats.accepted > 0) == (at > 0)


def config(method: str, **keys: object) -> dict[str, object]:
    return {"method": method, "num_speculative_tokens": 4, **keys}


TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
METHODS = {
    "draft model": (config("draft_model"), whole_model),
    "draft model, tree": (config("draft_model", num_speculative_tokens=3, tree=TREE), whole_model),
    "draft model, dynamic": (config("draft_model", dynamic_tree=True, max_tree_nodes=9, tree_width=3), whole_model),
    "eagle": (config("eagle", num_speculative_tokens=3, tree=TREE), stateful),
    "mtp": (config("mtp"), lambda law, texts: stateful(law, texts, modules=2)),
    "medusa": (config("medusa", num_speculative_tokens=3, tree=TREE), heads),
    "ngram first": (config("draft_model", ngram_first=2), whole_model),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_drafter_leaves_the_text_alone_and_guesses_what_the_guide_allows(name: str) -> None:
    keys, made = METHODS[name]
    requests = [
        asked(str(i), (JSON, REGEX)[i % 2], (4, 2, 1)[i % 3], sampling=list(SAMPLINGS.values())[i % 4], seed=i)
        for i in range(8)
    ]
    texts = Texts()
    speculative = from_dict(keys)
    found = run(requests, make_proposer(speculative, made(target, texts)), texts=texts)
    assert [result.ids for result in found] == [result.ids for result in plainly(requests)]
    accepted, passes = (sum(getattr(item.stats, name) for item in found) for name in ("accepted", "decode_passes"))
    assert accepted > passes / 2, "a drafter of the target's own law guesses badly: its guesses lack the guide"


def test_drafts_that_are_drawn_are_drawn_from_what_the_guide_allows() -> None:
    """Rejection with a drafter of the same law: nothing is rejected, and nothing is pruned."""
    speculative = from_dict(config("draft_model", acceptance="rejection"))
    texts = Texts()
    requests = [asked(str(i), sampling=WARM, seed=i, depth=4) for i in range(6)]
    proposer = make_proposer(speculative, whole_model(target, texts))
    found = run(requests, proposer, texts=texts, acceptance=rule(speculative))
    assert all(conforms(result.ids) for result in found)
    assert sum(result.stats.accepted for result in found) == sum(result.stats.drafted for result in found) > 0


def test_thirty_guided_requests_beside_ten_free_ones() -> None:
    """Case 34: all finish, and none of the free ones changes."""
    guided = [asked(f"g{i}", sampling=list(SAMPLINGS.values())[i % 4], seed=i) for i in range(30)]
    free = [asked(f"f{i}", None, sampling=WARM, seed=i, max_tokens=20) for i in range(10)]
    mixed = [*guided[:15], *free, *guided[15:]]
    found = [result.ids for result in run(mixed, random_drafter(target))]
    assert found == [result.ids for result in plainly(mixed)]
    assert all(conforms(ids) for request, ids in zip(mixed, found, strict=True) if request.guide)
    assert found[15:25] == [result.ids for result in plainly(free)]


TAG = (
    '{"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<"], "tags": [{"begin": "<", '
    '"content": {"type": "json_schema", "json_schema": {"enum": [12]}}, "end": ">"}]}}'
)


def test_a_guide_that_begins_inside_a_run_holds_in_the_same_pass() -> None:
    """Case 35: the mark and what must follow it are drafted and decided in one pass."""
    text = [7, 8, 12, 7, 7, 8, EOS]  # a b < a a b: behind the mark nothing but 12 and > may come
    law = chain_law(lambda prefix: text[min(len(prefix) - len(PROMPT), len(text) - 1)])
    request = asked(guide=compiled(GuideKind.STRUCTURAL_TAG, TAG), max_tokens=7)
    expected = plain(request, law)
    assert spell(expected.ids[:3]) == "ab<" and spell(expected.ids[3:6]) == "12>"

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        """What the model wants and, beside it behind the mark, what the guide wants."""
        done = len(tokens) - len(PROMPT)
        wanted = [*text[done:3], *expected.ids[max(done, 3) :]][:limit]
        wrong = [7] if done < 3 else []
        return [*wanted, *wrong], [*range(-1, len(wanted) - 1), *([2 - done] if wrong else [])]

    (found,) = run([request], ScriptedProposer(draw, 8), law)
    assert found.ids == expected.ids
    assert max(item.accepted for item in found.passes) >= 4, "the mark and what follows came in different passes"
    assert all(item.verified_nodes == item.drafted for item in found.passes), "the wrong node was submitted"


def test_a_schedule_of_draft_lengths_that_reaches_nothing() -> None:
    """Case 36: depth 4, then 0, then 2 during one request."""
    request = asked(sampling=WARM)
    expected = plain(request)
    right = right_drafter(guided_law(JSON), 4)
    depths = [4, 0, 2]

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        depth = depths[(len(schedule.views) - 1) % 3]
        return right._draw(tokens, min(limit, depth)) if depth and limit else ([], [])

    schedule = ScriptedProposer(draw, 4)
    (found,) = run([request], schedule)
    assert found.ids == expected.ids and {0, 2, 4} <= {item.drafted for item in found.passes}


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([JSON, REGEX]), st.sampled_from(list(SAMPLINGS.values())), st.booleans())
def test_random_trees_of_any_tokens_change_nothing(
    seed: int, guide: CompiledGuide, sampling: SamplingParams, narrow: bool
) -> None:
    values = random.Random(seed)

    def draw(tokens: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
        nodes = values.randrange(9)
        parents = [values.randrange(-1, node) if node else -1 for node in range(nodes)]
        depth = [0] * nodes
        for node, parent in enumerate(parents):
            depth[node] = 1 + (depth[parent] if parent >= 0 else 0)
        kept = [node for node in range(nodes) if depth[node] <= limit]
        moved = {node: place for place, node in enumerate(kept)} | {-1: -1}
        likely = range(12) if narrow else range(16)
        return [values.choice(likely) for _ in kept], [moved[parents[node]] for node in kept]

    request = asked(guide=guide, sampling=sampling, seed=seed)
    (found,) = run([request], ScriptedProposer(draw, 8))
    assert found.ids == plain(request).ids


def test_ngram_drafts_from_a_prompt_that_breaks_the_guide() -> None:
    requests = [asked(str(i), REGEX, prompt=(7, 8, 12, 9, 7, 8, 12, 7, 8), sampling=WARM, seed=i) for i in range(6)]
    found = run(requests, NgramProposer(5, shortest=1))
    assert sum(result.stats.accepted for result in found) > 0
    assert [result.ids for result in found] == [result.ids for result in plainly(requests)]


def test_without_an_end_of_text_the_guide_ends_the_output_at_the_token_that_completes_it() -> None:
    """As under ignore_eos: the end-of-text token is never chosen, wherever the text is complete."""
    for depth in (0, 5):
        (found,) = run([asked(eos_ids=frozenset(), depth=depth)], random_drafter(guided_law(JSON)))
        assert found.finish == Finish(FinishReason.STOP) and conforms(found.ids) and EOS not in found.ids
        assert found.ids == plain(asked()).ids[:-1], "it is the text that an end-of-text token would have ended"
        assert found.passes[-1].cut


def test_a_guide_that_may_end_anywhere_goes_on_without_an_end_of_text() -> None:
    guide = compiled(GuideKind.REGEX, "(a|b){1,9}")
    (found,) = run([asked(guide=guide, eos_ids=frozenset())], random_drafter(guided_law(guide)))
    assert len(found.ids) == 9 and found.finish == Finish(FinishReason.STOP)


def test_the_length_ends_an_output_before_it_is_complete_and_not_with_its_last_token() -> None:
    whole = plain(asked(eos_ids=frozenset())).ids
    for tokens, reason in ((len(whole) - 1, FinishReason.LENGTH), (len(whole), FinishReason.STOP)):
        (found,) = run([asked(eos_ids=frozenset(), max_tokens=tokens)], violating(whole, 4))
        assert found.ids == whole[:tokens] and found.finish == Finish(reason)


def test_stop_ids_that_the_guide_allows_end_the_output() -> None:
    expected = plain(asked())
    stop = expected.ids[5]
    (found,) = run([asked(stop_ids=frozenset({stop}))], violating(expected.ids, 3))
    assert found.ids == expected.ids[: expected.ids.index(stop) + 1] and found.finish == Finish(FinishReason.STOP, stop)


@pytest.mark.parametrize("depth", [0, 5])
def test_a_least_length_holds_the_end_back_until_the_guide_allows_nothing_else(depth: int) -> None:
    """Case 23 under a guide: the guide wins."""
    short, long = compiled(GuideKind.REGEX, "a|ab"), compiled(GuideKind.REGEX, "a{1,30}")
    law = chain_law(lambda prefix: EOS)
    for guide, length in ((short, 2), (long, 10)):
        request = asked(guide=guide, depth=depth, sampling=SamplingParams(min_tokens=10))
        (found,) = run([request], right_drafter(law), law)
        assert len(found.ids) == length + 1 and found.finish == Finish(FinishReason.EOS, EOS)


def test_no_guide_emits_a_special_token_but_the_end() -> None:
    """The model wants one at every place; any text of these tokens is allowed."""
    guide = compiled(GuideKind.REGEX, "(.|\\n)*")
    (found,) = run([asked(guide=guide, sampling=WARM, eos_ids=frozenset())], random_drafter(target))
    assert len(found.ids) == TOKENS and not {SPECIAL, EOS} & set(found.ids)
    assert found.finish == Finish(FinishReason.LENGTH)


def test_several_outputs_have_a_guide_each_and_log_probabilities_are_the_models_own() -> None:
    request = asked(n=3, sampling=SamplingParams(1.1, bad_words=((11,),)), logprobs=2)
    (found,) = run([request], random_drafter(guided_law(JSON)))
    (expected,) = run([replace(request, max_draft_tokens=0)])
    assert len(found.outputs) == 3 and len({tuple(output.ids) for output in found.outputs.values()}) > 1
    for index, output in found.outputs.items():
        assert output.ids == expected.outputs[index].ids and conforms(output.ids) and 11 not in output.ids
        assert [item.chosen.token_id for item in output.logprobs] == output.ids
        assert any(item.top[0].token_id == SPECIAL for item in output.logprobs), "masks must not change what is told"


@pytest.mark.parametrize(("depth", "ends"), [(0, {EOS}), (5, {EOS}), (0, set()), (5, set())])
def test_where_nothing_may_follow_the_request_fails_alone_and_says_what_field(depth: int, ends: set[int]) -> None:
    """A word that is forbidden and that the guide asks for; a rule that no text gets out of."""
    forbidden = asked("forbidden", sampling=SamplingParams(bad_words=((7,),)), guide=compiled(GuideKind.REGEX, "ba"))
    endless = asked("endless", compiled(GuideKind.GRAMMAR, 'root ::= "b" again\nagain ::= again'))
    good = asked("good")
    requests = [replace(item, max_draft_tokens=depth, eos_ids=frozenset(ends)) for item in (forbidden, endless, good)]
    found = run(requests, random_drafter(target))
    for result, field in zip(found, ("guided_decoding.regex", "guided_decoding.grammar"), strict=False):
        assert isinstance(result.error, InvalidField) and result.error.details["field"] == field
        assert spell(result.ids) == "b"
    assert found[2].ids == plain(requests[2]).ids


def test_preemption_does_not_lose_the_place_in_the_guide() -> None:
    """So few blocks that sequences are computed again."""
    requests = [asked(str(i), sampling=WARM, seed=i, prompt=PROMPT * 5) for i in range(4)]
    expected = [result.ids for result in plainly(requests)]
    engine, _ = scripted_engine(
        target, Watched(random_drafter(guided_law(JSON, prompt=PROMPT * 5))), blocks=20, batch=4
    )
    results = drive(engine, requests)
    assert engine.stats().preemptions > 0
    drive(engine, [asked("last", None)])
    assert not engine._editor._guided, "matchers of what ended are kept"
    assert [results[request.request_id].ids for request in requests] == expected


def test_a_guide_that_nothing_compiled_is_refused_before_it_is_queued() -> None:
    engine, _ = scripted_engine(target, NoProposer())
    with pytest.raises(Unsupported, match="guided_decoding.regex"):
        engine.submit(asked(guide=Guide(GuideKind.REGEX, "a")))  # type: ignore[arg-type]
    assert engine.idle and SPELT[SPECIAL] == ""
