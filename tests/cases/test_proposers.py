"""Model-based proposers over scripted drafters: any drafter, tree and batch leaves the text alone, and good ones pay.

Cases 1, 3, 4, 6, 8 of the collected bug reports, for every method at once: the networks assert what they are fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.drafters import heads, stateful, whole_model
from tests.scripted import Law, Texts, drive, hashed_law, scripted_engine
from trtspec.decoding.acceptance import rule
from trtspec.decoding.drafting import Drafter
from trtspec.decoding.proposer import make_proposer
from trtspec.decoding.proposers.none import NoProposer
from trtspec.speculative import SpeculativeConfig, from_dict
from trtspec.types import Request, SamplingParams

TREE = [[0], [1], [0, 0], [0, 1], [0, 0, 0], [1, 0], [2]]
SHAPES = {
    "chain": {},
    "tree": {"tree": TREE},
    "dynamic": {"dynamic_tree": True, "max_tree_nodes": 6, "tree_width": 3},
    "dynamic, one node after the other": {"dynamic_tree": True, "max_tree_nodes": 3, "tree_width": 3},
}
METHODS = ("draft_model", "medusa", "eagle", "mtp")
SAMPLING = (
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(0.7, top_k=5),
    SamplingParams(1.3, top_p=0.8, min_p=0.02),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4),
    SamplingParams(0.9, presence_penalty=0.5, logit_bias=((3, 1.0),)),
)
LAW = hashed_law()


def config(method: str, shape: str, depth: int = 3, **more: object) -> SpeculativeConfig:
    return from_dict({"method": method, "num_speculative_tokens": depth, **SHAPES[shape], **more})


def drafter(method: str, law: Law, texts: Texts, **settings: object) -> Drafter:
    if method == "draft_model":
        return whole_model(law, texts, **settings)
    if method == "medusa":
        return heads(law, texts, 3)
    return stateful(law, texts, 3 if method == "mtp" else 1, **settings)


def requests(count: int = 6, tokens: int = 24, depth: int = 3) -> list[Request]:
    """Prompts of lengths from one token to several blocks, settings that differ, one that must not draft."""
    return [
        Request(
            str(i),
            prompt=tuple((5 * i + j) % 16 for j in range((1, 2, 5, 9, 17, 30)[i % 6])),
            max_tokens=tokens - i,
            sampling=SAMPLING[i % len(SAMPLING)],
            seed=70 + i,
            max_draft_tokens=0 if i == 4 else depth - (i == 2),
        )
        for i in range(count)
    ]


def texts_of(results: dict[str, object]) -> dict[str, list[int]]:
    return {name: result.ids for name, result in results.items()}  # type: ignore[attr-defined]


def plain(asked: list[Request], law: Law = LAW) -> dict[str, list[int]]:
    engine, _ = scripted_engine(law, NoProposer())
    return texts_of(drive(engine, asked))


def cases() -> list[tuple[str, str]]:
    return [
        (method, shape)
        for method in METHODS
        for shape in SHAPES
        if method != "medusa" or not shape.startswith("dynamic")
    ]


@pytest.mark.parametrize(("method", "shape"), cases())
@pytest.mark.parametrize("right", [True, False])
def test_the_text_is_that_of_plain_decoding(method: str, shape: str, right: bool) -> None:
    """In a batch that fills up over time, prompts in chunks, and with blocks so short that sequences are preempted."""
    texts, asked = Texts(), requests()
    proposer = make_proposer(config(method, shape), drafter(method, LAW if right else hashed_law(salt=1), texts))
    engine, _ = scripted_engine(LAW, proposer, texts=texts, pass_tokens=24, blocks=18, prefix_sharing=False)
    results = drive(engine, asked, join_every=2)
    assert texts_of(results) == plain(asked)
    assert engine.stats().preemptions > 0
    drafted = {name: result.stats.drafted for name, result in results.items()}
    assert drafted["4"] == 0 and all(drafted[name] > 0 for name in "01235")


@pytest.mark.parametrize(("method", "shape"), cases())
def test_prefixes_that_are_found_leave_the_text_alone(method: str, shape: str) -> None:
    texts = Texts()
    shared = tuple(range(1, 14))
    asked = [Request(str(i), (*shared[: 13 - i % 3], i), 12, SAMPLING[i % 4], 5, max_draft_tokens=3) for i in range(6)]
    proposer = make_proposer(config(method, shape), drafter(method, LAW, texts, **loose(method)))
    engine, _ = scripted_engine(LAW, proposer, texts=texts)
    results = drive(engine, asked, join_every=3)
    assert texts_of(results) == plain(asked)
    assert sum(result.cached_tokens or 0 for result in results.values()) > 0


def loose(method: str) -> dict[str, object]:
    """At the end of a block that is found, the token of whoever computed it may lie beyond."""
    return {"whole_prefix": False} if method in ("eagle", "mtp") else {}


def right_cases() -> list[tuple[str, SamplingParams]]:
    """Medusa's heads see no token, so that they can be right of greedy roots only."""
    sampled = (SamplingParams(1.0), SamplingParams(0.8, top_k=4, top_p=0.9))
    greedy = [(method, SamplingParams()) for method in METHODS]
    return greedy + [(method, kind) for method in METHODS if method != "medusa" for kind in sampled]


@pytest.mark.parametrize(("method", "sampling"), right_cases())
def test_a_drafter_that_is_the_target_is_always_right(method: str, sampling: SamplingParams) -> None:
    """Greedy and sampled: the drafter knows the noise."""
    texts = Texts()
    engine, _ = scripted_engine(LAW, make_proposer(config(method, "chain", 4), drafter_of(method, texts)), texts=texts)
    asked = [Request("a", (1, 2, 3, 4, 5), 101, sampling, seed=9, max_draft_tokens=4)]
    stats = drive(engine, asked)["a"].stats
    assert stats.accepted == stats.drafted == 80 and stats.decode_passes == 20


def drafter_of(method: str, texts: Texts) -> Drafter:
    return heads(LAW, texts, 4) if method == "medusa" else drafter(method, LAW, texts)


def test_a_reduced_vocabulary_drafts_the_targets_ids() -> None:
    texts = Texts()
    kept = [1, 2, 3, 5, 8, 13]
    network = stateful(LAW, texts, token_ids=kept)
    engine, runner = scripted_engine(LAW, make_proposer(config("eagle", "tree"), network), texts=texts)
    asked = requests()
    assert texts_of(drive(engine, asked)) == plain(asked)
    rows = [row[:count] for draft in runner.drafts for row, count in zip(draft.tokens, draft.counts, strict=True)]
    drafted = {token for row in rows for token in row.tolist()}
    assert drafted <= set(kept) and len(drafted) > 3


def test_drafts_whose_logits_are_not_numbers_are_dropped() -> None:
    texts = Texts()
    network = stateful(lambda prefix: [float("nan")] * 16 if len(prefix) % 3 else LAW(prefix), texts)
    engine, runner = scripted_engine(LAW, make_proposer(config("eagle", "chain"), network), texts=texts)
    asked = requests()
    assert texts_of(drive(engine, asked)) == plain(asked)
    assert max(int(draft.counts.max()) for draft in runner.drafts) == 1


@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_a_shorter_context_of_the_drafter_pauses_drafting(method: str) -> None:
    texts = Texts()
    proposer = make_proposer(config(method, "chain"), drafter(method, LAW, texts, positions=20))
    engine, runner = scripted_engine(LAW, proposer, texts=texts)
    asked = [
        Request(name, tuple(range(1, length)), 40, max_draft_tokens=3)
        for name, length in zip("ab", (4, 6), strict=True)
    ]
    results = drive(engine, asked)
    assert texts_of(results) == plain(asked)
    drafted = [
        row.next_position + count
        for plan, draft in zip(runner.plans, runner.drafts, strict=True)
        for row, count in zip(plan.rows, draft.counts.tolist(), strict=True)
        if count
    ]
    assert drafted and max(drafted) <= 20


def test_what_a_draft_model_cached_while_drafting_is_not_fed_again() -> None:
    texts = Texts()
    drafter = whole_model(LAW, texts)
    engine, _ = scripted_engine(LAW, make_proposer(config("draft_model", "chain", 4), drafter), texts=texts)
    drive(engine, [Request("a", (1, 2, 3, 4, 5), 101, max_draft_tokens=4)])
    # prompt and first token, then in each of 20 passes three drafted tokens, the fourth and the bonus
    assert drafter.modules[0].places == 6 + 20 * 5 - 2  # type: ignore[attr-defined]


def torn(prefix: Sequence[int]) -> list[float]:
    """Sure of the right token, but after every fifth of any."""
    best = max(range(16), key=LAW(prefix).__getitem__)
    return [9.0 if token == best and len(prefix) % 5 else 0.0 for token in range(16)]


def test_confidence_cuts_drafts_that_are_unlikely() -> None:
    texts = Texts()
    proposer = make_proposer(config("eagle", "chain", min_confidence=0.5), stateful(torn, texts))
    engine, runner = scripted_engine(LAW, proposer, texts=texts)
    asked = [Request("a", (1, 2, 3, 4, 5), 60, max_draft_tokens=3)]
    results = drive(engine, asked)
    assert texts_of(results) == plain(asked)
    assert results["a"].stats.accepted == results["a"].stats.drafted > 0
    drafting = [plan.rows[0].next_position for plan in runner.plans[1:]]
    drafts = [int(draft.counts[0]) for draft in runner.drafts[1:]]
    expected = [min(3, -length % 5, 64 - length) for length in drafting]
    assert drafts == expected and {0, 3} <= set(expected)


def half_copied(prefix: Sequence[int]) -> Sequence[float]:
    """Texts that begin with 7 go round in nine tokens; others are hashed."""
    return [9.0 if token == prefix[-9] else 0.0 for token in range(16)] if prefix[0] == 7 else LAW(prefix)


def test_lookup_goes_first_where_it_matches() -> None:
    """A row that repeats itself copies, deeper than the drafter's tree; the others are drafted; all stay in step."""
    texts = Texts()
    proposer = make_proposer(config("eagle", "tree", depth=6, ngram_first=2), stateful(half_copied, texts))
    engine, runner = scripted_engine(half_copied, proposer, texts=texts)
    again = Request("again", (7, 1, 2, 3, 4, 5, 6, 8, 9), 30, max_draft_tokens=6)
    asked = [*requests(4, depth=6), again]
    assert texts_of(drive(engine, asked, join_every=1)) == plain(asked, half_copied)
    drafts = [
        (row.request is again, draft.parents[index, :count].tolist())
        for plan, draft in zip(runner.plans, runner.drafts, strict=True)
        for index, (row, count) in enumerate(zip(plan.rows, draft.counts.tolist(), strict=True))
    ]
    assert (True, [-1, 0, 1, 2, 3, 4]) in drafts
    assert (False, [-1, -1, -1, 0, 0, 1, 3]) in drafts and (False, [-1, 0, 1, 2, 3, 4]) not in drafts


@pytest.mark.parametrize("right", [True, False])
def test_drawn_drafts_are_accepted_by_the_papers_rule(right: bool) -> None:
    """A drafter with the target's law is never rejected; greedy requests of the batch keep their text with any."""
    texts, asked = Texts(), requests()
    law = LAW if right else hashed_law(salt=1)
    settings = config("draft_model", "chain", acceptance="rejection")
    proposer = make_proposer(settings, whole_model(law, texts, token_ids=None if right else range(2, 15)))
    engine, _ = scripted_engine(LAW, proposer, texts=texts, acceptance=rule(settings), pass_tokens=24, blocks=18)
    results = drive(engine, asked, join_every=2)
    expected = plain(asked)
    assert results["0"].ids == expected["0"] and results["4"].ids == expected["4"]
    assert [len(result.ids) for result in results.values()] == [len(ids) for ids in expected.values()]
    stats = [results[name].stats for name in "123"]
    assert all(item.accepted < item.drafted for item in stats) is not right
    assert not right or all(item.accepted == item.drafted > 0 for item in stats)


@pytest.mark.parametrize("method", ["draft_model", "eagle", "mtp"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_what_the_drafter_has_not_read_is_not_found(method: str, cancelled: bool) -> None:
    """A sequence that ends or is cancelled leaves positions that only the target knows; the next turn computes them."""
    texts = Texts()
    proposer = make_proposer(config(method, "chain"), drafter(method, LAW, texts, **loose(method)))
    engine, _ = scripted_engine(LAW, proposer, texts=texts)
    first = Request("first", tuple(range(1, 14)), 40 if cancelled else 19, max_draft_tokens=3)
    answer = drive(engine, [first], cancel={"first": 5} if cancelled else None)["first"].ids
    turn = Request("turn", (*first.prompt, *answer, 3), 13, max_draft_tokens=3)
    found = drive(engine, [turn])["turn"]
    assert found.ids == plain([turn])["turn"]
    assert len(first.prompt) < (found.cached_tokens or 0) < len(turn.prompt) - 1
    assert found.stats.accepted == found.stats.drafted > 0


def sharp(prefix: Sequence[int]) -> list[float]:
    return [400.0 * value for value in LAW(prefix)]


@pytest.mark.parametrize("nodes", [3, 8, 16])
def test_a_dynamic_tree_is_as_deep_as_asked_and_no_worse_than_the_chain(nodes: int) -> None:
    """However wide: each depth leaves room for those below it."""
    accepted = {}
    for name, shape in {"chain": {}, "dynamic": {"dynamic_tree": True, "max_tree_nodes": nodes}}.items():
        texts = Texts()
        depth = min(8, nodes)
        settings = from_dict({"method": "eagle", "num_speculative_tokens": depth, **shape})
        engine, _ = scripted_engine(sharp, make_proposer(settings, stateful(sharp, texts)), texts=texts, blocks=256)
        asked = Request("a", (1, 2, 3), 91, max_draft_tokens=depth)
        accepted[name] = drive(engine, [asked])["a"].stats
    assert accepted["dynamic"].decode_passes == accepted["chain"].decode_passes
    assert accepted["dynamic"].histogram[-1] > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_a_chunk_that_crosses_the_drafters_context_leaves_what_lies_before_it(method: str) -> None:
    texts = Texts()
    network = drafter(method, LAW, texts, positions=20, **loose(method))
    engine, _ = scripted_engine(LAW, make_proposer(config(method, "chain"), network), texts=texts)
    drive(engine, [Request("long", (*range(12), *range(12)), 8, max_draft_tokens=3)])
    short = Request("short", (*range(12), 5), 5, max_draft_tokens=3)
    found = drive(engine, [short])["short"]
    assert found.cached_tokens == 12 and found.ids == plain([short])["short"]
    assert found.stats.accepted == found.stats.drafted > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle", "mtp"])
def test_several_outputs_are_each_those_of_plain_decoding(method: str) -> None:
    texts = Texts()
    asked = Request("a", tuple(range(1, 14)), 15, SamplingParams(1.0), seed=8, max_draft_tokens=3, n=3)
    engine, _ = scripted_engine(
        LAW, make_proposer(config(method, "chain"), drafter(method, LAW, texts, **loose(method))), texts=texts
    )
    found = drive(engine, [asked])["a"].outputs
    expected = drive(scripted_engine(LAW, NoProposer())[0], [replace(asked, max_draft_tokens=0)])["a"].outputs
    assert [found[i].ids for i in range(3)] == [expected[i].ids for i in range(3)]
    assert all(found[i].stats.accepted == found[i].stats.drafted > 0 for i in range(3))


def test_one_token_answers_find_each_others_prefix() -> None:
    """They never draft, so that what their drafter did not read is no loss."""
    texts = Texts()
    engine, runner = scripted_engine(LAW, make_proposer(config("eagle", "chain"), stateful(LAW, texts)), texts=texts)
    asked = Request("a", tuple(range(1, 14)), 1, max_draft_tokens=3)
    assert [drive(engine, [asked])["a"].cached_tokens for _ in range(2)] == [0, 12]
    drive(engine, [replace(asked, n=4, tenant="other")])
    assert sum(row.fed for plan in runner.plans[2:] for row in plan.rows) == 13 + 3


def test_a_request_that_must_not_draft_finds_what_others_computed_and_not_the_other_way_round() -> None:
    texts = Texts()
    engine, _ = scripted_engine(LAW, make_proposer(config("eagle", "chain"), stateful(LAW, texts)), texts=texts)
    on = Request("a", tuple(range(1, 14)), 8, max_draft_tokens=3)
    off = replace(on, max_draft_tokens=0)
    assert [drive(engine, [item])["a"].cached_tokens for item in (off, on, on, off)] == [0, 0, 12, 12]
    longer = replace(off, prompt=(*off.prompt, *plain([off])["a"], 7))
    assert [drive(engine, [longer])["a"].cached_tokens for _ in range(2)] == [20, 20]


def test_medusa_without_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="medusa drafts with heads, and the drafter has none"):
        make_proposer(config("medusa", "chain"), Drafter())
