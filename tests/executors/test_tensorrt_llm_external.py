"""Drafts that TensorRT-LLM verifies itself: text is that of the embedded engine, and sampled text follows its law."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engines import Collected, collect, collect_outputs, one_by_one, staggered
from tests.fakes.installed import tensorrt_llm_double
from tests.law.chi_square import Fit, fit
from tests.rounds import PROMPT, Folders, ask, compiled, embedded, expected, opened, quiet_llama
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, Unsupported
from trtspec.executors.base import Executor
from trtspec.executors.tensorrt_llm.loop.by_engine import EngineVerifier
from trtspec.types import FinishReason, OutputLaw, SamplingParams

LAW = SamplingParams(temperature=0.7, top_k=3)
DRAWS = 250


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quiet_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folders(double: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("external")

    def build(method: str) -> Path:
        config = json.dumps({"method": method, "acceptance": "engine"})
        return compiled(model, method, root / method, "--speculative-config", config)

    return Folders(build)


@pytest.fixture(scope="module")
def embedded_folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded(model, tmp_path_factory.mktemp("embedded") / "engine")


@pytest.fixture(params=["ngram", pytest.param("draft_model", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, folders: Folders) -> Path:
    return folders[request.param]


REQUESTS = [
    ask("greedy", 100),
    ask("held", 60, eos_ids=frozenset({50}), sampling=SamplingParams(min_tokens=30)),
    ask("repeated", sampling=SamplingParams(repetition_penalty=1.2)),
    ask("penalised", sampling=SamplingParams(frequency_penalty=0.1)),
    ask("biased", sampling=SamplingParams(logit_bias=((60, 2.0), (50, -5.0)), bad_words=((61,), (40, 50)))),
    ask("one", 1),
    ask("two", 2),
    ask("stopped", stop_ids=frozenset(range(100, 180))),
    ask("ended", eos_ids=frozenset({50})),
]


async def test_greedy_text_is_that_of_the_embedded_engine(folder: Path, embedded_folder: Path) -> None:
    texts = await expected(embedded_folder, REQUESTS)
    async with opened(folder) as executor:
        assert executor.info().acceptance == "engine" and executor.info().output_law is OutputLaw.UNPROVEN
        alone = await one_by_one(executor, REQUESTS)
        together = await staggered(executor, [replace(item, request_id=f"{item.request_id}2") for item in REQUESTS])
        plain = await collect(executor, ask("plain", 100, depth=0))
    for mine, joined, theirs, request in zip(alone, together, texts, REQUESTS, strict=True):
        assert mine.ids == joined.ids == theirs.ids, request.request_id
        assert mine.finish == joined.finish == theirs.finish, request.request_id
    assert plain.ids == texts[0].ids and not plain.stats.spec_steps
    assert alone[0].stats.accepted > 10


@pytest.mark.slow
async def test_a_round_is_as_deep_as_was_asked(folders: Folders) -> None:
    """A perfect draft model is right all the time."""
    async with opened(folders["draft_model"]) as executor:
        deep, shallow = await one_by_one(executor, [ask("a", max_tokens=28), ask("b", max_tokens=9, depth=3)])
    assert [(record.drafted, record.accepted) for record in deep.passes] == [(0, 0), (8, 8), (8, 8), (8, 8)]
    assert [(record.drafted, record.accepted) for record in shallow.passes] == [(0, 0), (3, 3), (3, 3)]


@pytest.mark.slow
async def test_an_accepted_end_counts_as_accepted(folders: Folders) -> None:
    """The runtime does not tell the end of the text; it was drafted all the same."""
    async with opened(folders["draft_model"]) as executor:
        whole = await collect(executor, ask("a", max_tokens=9))
        end = whole.ids[3]
        found = await collect(executor, ask("b", max_tokens=9, eos_ids=frozenset({end})))
    first = whole.ids.index(end)
    assert found.ids == whole.ids[: first + 1] and found.finish is not None
    assert found.finish.reason is FinishReason.EOS and found.passes[-1].cut
    assert found.passes[-1].accepted == found.passes[-1].emitted == first


async def test_no_round_outgrows_the_engine(folders: Folders) -> None:
    """A text that fills the context, of an engine that keeps room for its longest draft behind every prompt."""
    async with opened(folders["ngram"]) as executor:
        limit = executor.info().limits.max_context_tokens
        found = await collect(executor, ask(max_tokens=limit - len(PROMPT)))
    assert limit == 256 and len(found.ids) == limit - len(PROMPT)


Row = Callable[[tuple[int, ...]], dict[int, float]]


@pytest.fixture(scope="module")
def row(model: Path) -> Row:
    """The law of the next token, by the model alone."""
    network = AutoModelForCausalLM.from_pretrained(model).eval()

    def row(text: tuple[int, ...]) -> dict[int, float]:
        with torch.no_grad():
            logits = network(torch.tensor([text])).logits[0, -1]
        values, ids = (logits / LAW.temperature).topk(LAW.top_k)
        return dict(zip(ids.tolist(), values.softmax(0).tolist(), strict=True))

    return row


async def drawn(executor: Executor, row: Row) -> Fit:
    """How the first two tokens of many outputs fit the law, where the second one was drafted.

    The prompt has every token that can come first, with the one behind it that is the most likely there.
    """
    begun = (token for one in row((40,)) for token in (one, max(row((one,)).items(), key=itemgetter(1))[0]))
    prompt = (*begun, 40)
    law = {(one, two): p * q for one, p in row(prompt).items() for two, q in row((*prompt, one)).items()}
    requests = [ask(str(seed), 3, seed=seed, sampling=LAW, prompt=prompt, n=4) for seed in range(DRAWS)]
    found: list[Collected] = []
    for some in (requests[first : first + 32] for first in range(0, DRAWS, 32)):
        for outputs in await asyncio.gather(*(collect_outputs(executor, request) for request in some)):
            found += outputs
    assert all(item.passes[1].drafted == 1 for item in found)
    counts = Counter(tuple(item.ids[:2]) for item in found)
    assert set(counts) <= set(law)
    return fit(np.array([counts[pair] for pair in law]), np.array(list(law.values())))


@pytest.mark.slow
async def test_sampled_text_follows_the_law(folders: Folders, row: Row) -> None:
    async with opened(folders["ngram"]) as executor:
        assert (await drawn(executor, row)).good


@pytest.mark.slow
async def test_without_logits_it_would_not(folders: Folders, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was drawn and is not the draft is drawn once more, which favours the draft."""
    arguments = EngineVerifier.arguments

    def uncertain(*all_: Any) -> dict[str, Any]:
        made = arguments(*all_)
        if draft := made.get("external_draft_tokens_config"):
            draft["certain"] = None
        return made

    monkeypatch.setattr(EngineVerifier, "arguments", uncertain)
    async with opened(folders["ngram"]) as executor:
        assert not (await drawn(executor, row)).good


async def test_a_seed_gives_the_same_text_as_often_as_it_is_asked(folder: Path) -> None:
    async with opened(folder) as executor:
        one, same, other = await one_by_one(
            executor,
            [
                ask(name, seed=seed, sampling=SamplingParams(temperature=0.5, top_p=0.3))
                for name, seed in (("a", 1), ("b", 1), ("c", 2))
            ],
        )
    assert one.ids == same.ids != other.ids


@pytest.mark.parametrize(
    ("change", "feature"), [({"logprobs": 1}, "logprobs"), ({"sampling": SamplingParams(0.5, min_p=0.1)}, "min_p")]
)
async def test_what_such_an_engine_would_ignore_is_refused(
    folders: Folders, change: dict[str, Any], feature: str
) -> None:
    async with opened(folders["ngram"]) as executor:
        with pytest.raises(Unsupported, match=f"^{feature}: engines that verify drafts themselves"):
            await collect(executor, ask(**change))
        assert len((await collect(executor, ask("after"))).ids) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_sharing": False}, "--no-prefix-sharing: .* leave it out"),
        ({"speculative": {"method": "ngram", "acceptance": "exact"}}, "acceptance is 'exact' and .* 'engine'"),
        ({"speculative": {"method": "none"}}, "compiled for ngram, which it cannot leave out"),
    ],
)
async def test_what_such_an_engine_cannot_do_is_refused_when_it_is_opened(
    folders: Folders, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        async with opened(folders["ngram"], EngineOptions(**options)):
            pass
