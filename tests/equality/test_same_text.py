"""The text is that of an independent engine, and with a seed it is the same at any depth and in any batch (float32)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.engines import one_by_one, staggered
from tests.equality.conftest import Subject
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import Request, SamplingParams

TOKENS = 64
DEPTH = 8
WITHOUT_SPECULATION = {"method": "none"}


@asynccontextmanager
async def opened(subject: Subject, speculative: Mapping[str, Any] | None = None) -> AsyncIterator[Executor]:
    options = EngineOptions(kv_cache_mib=256, threads=subject.threads, speculative=speculative)
    executor = await open_executor(subject.directory, options, in_process=True)
    try:
        yield executor
        stats = await executor.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.total_blocks)
    finally:
        await executor.aclose()


def requests(subject: Subject, depth: int, **changes: object) -> list[Request]:
    return [
        Request(str(i), prompt, TOKENS, eos_ids=subject.eos_ids, max_draft_tokens=depth, **changes)
        for i, prompt in enumerate(subject.prompts)
    ]


async def check_against_transformers(subject: Subject) -> None:
    """Sixteen prompts, alone and joining and leaving each other, without and with speculation."""
    expected = [subject.reference(prompt, TOKENS) for prompt in subject.prompts]
    for speculative, depth in ((WITHOUT_SPECULATION, 0), (None, DEPTH)):
        async with opened(subject, speculative) as executor:
            alone = await one_by_one(executor, requests(subject, depth))
            together = await staggered(executor, requests(subject, depth))
        assert [result.ids for result in alone] == expected
        assert [result.ids for result in together] == expected
        accepted = sum(result.stats.accepted for result in together)
        assert (accepted > 0) == (depth > 0), "speculation did not engage as asked"
        first, second = ({item.pass_index for item in result.passes} for result in together[:2])
        assert first & second, "the requests were not in flight together"


async def check_seeded(subject: Subject, count: int) -> None:
    """Temperature 0.8 with speculation off, on, at depth 1 and 8, alone and in a batch."""
    sampling = SamplingParams(temperature=0.8, top_p=0.95)
    chosen = replace(subject, prompts=subject.prompts[:count])
    texts = []
    async with opened(subject) as executor:
        for depth, run in itertools.product((0, 1, DEPTH), (one_by_one, staggered)):
            seeded = [replace(item, seed=40 + i) for i, item in enumerate(requests(chosen, depth, sampling=sampling))]
            texts.append([result.ids for result in await run(executor, seeded)])
        other = await one_by_one(executor, [replace(requests(chosen, DEPTH, sampling=sampling)[0], seed=7)])
    assert all(text == texts[0] for text in texts)
    assert other[0].ids != texts[0][0], "the seed has no effect"


async def test_a_tiny_llama_says_what_transformers_says(tiny: Subject) -> None:
    await check_against_transformers(tiny)


async def test_seeded_text_of_a_tiny_llama_is_identical_at_any_depth(tiny: Subject) -> None:
    await check_seeded(tiny, 6)


@pytest.mark.demo_model
@pytest.mark.timeout(1200)
async def test_the_demo_model_says_what_transformers_says(demo: Subject) -> None:
    await check_against_transformers(demo)


@pytest.mark.demo_model
@pytest.mark.timeout(1200)
async def test_seeded_text_of_the_demo_model_is_identical_at_any_depth(demo: Subject) -> None:
    await check_seeded(demo, 4)
