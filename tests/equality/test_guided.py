"""Guided text of real float32 engines: the same without drafts and with those of every method, alone and in a batch.

The models are random, and so are their drafters, but for a draft model that is the target itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.engines import Collected, collect, collect_outputs
from tests.equality.conftest import Subject
from tests.equality.test_proposers import make_subject
from tests.models import tiny_tokenizer
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.guides import Guide, GuideKind
from trtspec.types import FinishReason, Request, SamplingParams

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,12}$"},
        "size": {"enum": [1, 22, 333]},
        "tags": {"type": "array", "items": {"enum": ["the", "in", "on"]}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "size", "tags"],
}
REGEX = "(the|in|a|on){4,40}[0-9]{2}!"
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{"begin": "<", "content": {"type": "regex", "pattern": "[a-f]{4}"}, "end": ">"}],
    },
}
GUIDES = (
    Guide(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    Guide(GuideKind.REGEX, REGEX),
    Guide(GuideKind.STRUCTURAL_TAG, json.dumps(TAG)),
    Guide(GuideKind.JSON_OBJECT),
    None,
)
SETTINGS = (
    SamplingParams(),
    SamplingParams(0.8, top_p=0.95),
    SamplingParams(1.0, repetition_penalty=1.2, logit_bias=((30, 4.0),)),
)
TOKENS = 64


class Trusting:
    """In place of the process that tries guides, which takes seconds to start: these are known to be harmless."""

    def __init__(self, begin: object) -> None:
        pass

    def check(self, guide: Guide) -> None:
        pass

    def close(self) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.fixture(autouse=True)
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.executors.guides.opening.Rehearsal", Trusting)


def requests(subject: Subject, depth: int) -> Iterator[Request]:
    for index, prompt in enumerate(subject.prompts[:15]):
        yield Request(
            str(index),
            prompt,
            TOKENS,
            SETTINGS[index % len(SETTINGS)],
            seed=60 + index,
            eos_ids=subject.eos_ids,
            max_draft_tokens=(depth, 1, max(depth - 1, 0))[index % 3] if depth else 0,
            guide=GUIDES[index % len(GUIDES)],
        )


async def texts(subject: Subject, speculative: Mapping[str, Any] | None, together: bool = True) -> list[Collected]:
    options = EngineOptions(kv_cache_mib=64, threads=1, speculative=speculative)
    executor = await open_executor(subject.directory, options, in_process=True)
    asked = list(requests(subject, executor.info().limits.max_draft_tokens))
    try:
        if together:
            return list(await asyncio.gather(*(collect(executor, request) for request in asked)))
        return [await collect(executor, request) for request in asked]
    finally:
        await executor.aclose()


def check(subject: Subject, found: list[Collected]) -> None:
    """What each guide promises."""
    tokenizer = tiny_tokenizer()
    for index, result in enumerate(found):
        guide, text = GUIDES[index % len(GUIDES)], tokenizer.decode([id_ for id_ in result.ids if id_ > 2])
        assert result.finish is not None
        if guide is not None:
            assert not {0, 1, 2} & set(result.ids[:-1]), "a special token inside a guided text"
        if guide is GUIDES[2]:
            assert not re.sub("<[a-f]{4}>", "", text).count("<") or result.finish.reason is FinishReason.LENGTH
        if result.finish.reason is not FinishReason.EOS:
            continue
        if guide is GUIDES[0]:
            value = json.loads(text)
            assert re.fullmatch("[a-z]{1,12}", value["name"]) and value["size"] in (1, 22, 333)
            assert 1 <= len(value["tags"]) <= 4 and set(value["tags"]) <= {"the", "in", "on"}
        if guide is GUIDES[1]:
            assert re.fullmatch(REGEX, text)
        if guide is GUIDES[3]:
            assert isinstance(json.loads(text), dict | list)
    ended = [result for index, result in enumerate(found) if index % len(GUIDES) in (0, 1)]
    assert any(item.finish and item.finish.reason is FinishReason.EOS for item in ended)


async def test_guided_text_is_the_same_with_and_without_prompt_lookup(tiny: Subject) -> None:
    expected = await texts(tiny, {"method": "none"}, together=False)
    check(tiny, expected)
    found = await texts(tiny, None)
    assert [item.ids for item in found] == [item.ids for item in expected]
    assert sum(item.stats.accepted for item in found) > 0


@pytest.mark.parametrize("method", ["draft_model", "medusa", "eagle", "eagle3", "mtp"])
async def test_guided_text_is_the_same_with_every_drafter(
    method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    subject = await asyncio.to_thread(make_subject, tmp_path_factory.mktemp(f"guided-{method}"), method, "eager")
    expected = await texts(subject, {"method": "none"})
    check(subject, expected)
    found = await texts(subject, None)
    assert [item.ids for item in found] == [item.ids for item in expected]
    assert sum(item.stats.accepted for item in found) > 0


async def test_outputs_of_one_request_each_follow_the_guide(tiny: Subject) -> None:
    executor = await open_executor(tiny.directory, EngineOptions(kv_cache_mib=64, threads=1), in_process=True)
    asked = Request(
        "a",
        tiny.prompts[3],
        TOKENS,
        SamplingParams(1.3),
        5,
        eos_ids=tiny.eos_ids,
        max_draft_tokens=4,
        n=4,
        guide=GUIDES[1],
    )
    try:
        outputs = await collect_outputs(executor, replace(asked, guide=GUIDES[1]))
    finally:
        await executor.aclose()
    tokenizer = tiny_tokenizer()
    whole = [item for item in outputs if item.finish and item.finish.reason is FinishReason.EOS]
    assert len({tuple(item.ids) for item in outputs}) == 4
    assert all(re.fullmatch(REGEX, tokenizer.decode(item.ids[:-1])) for item in whole)
