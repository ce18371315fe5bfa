"""The text is that of an independent engine, and with a seed it is the same at any depth and in any batch (float32)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.engines import Collected, one_by_one, staggered
from tests.equality.conftest import Subject
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.types import Request, SamplingParams

TOKENS = 64
DEPTH = 8
Schedule = Callable[[Executor, Sequence[Request]], Awaitable[list[Collected]]]
SCHEDULES = pytest.mark.parametrize("schedule", [one_by_one, staggered])
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


def requests(subject: Subject, depth: int, tokens: int = TOKENS, **changes: object) -> list[Request]:
    return [
        Request(str(i), prompt, tokens, eos_ids=subject.eos_ids, max_draft_tokens=depth, **changes)
        for i, prompt in enumerate(subject.prompts)
    ]


async def check_against_transformers(subject: Subject, schedule: Schedule, tokens: int = TOKENS) -> None:
    """All prompts, without and with speculation."""
    expected = subject.references(tokens)
    for speculative, depth in ((WITHOUT_SPECULATION, 0), (None, DEPTH)):
        async with opened(subject, speculative) as executor:
            results = await schedule(executor, requests(subject, depth, tokens))
        assert [result.ids for result in results] == expected
        accepted = sum(result.stats.accepted for result in results)
        assert (accepted > 0) == (depth > 0), "speculation did not engage as asked"
        first, second = ({item.pass_index for item in result.passes} for result in results[:2])
        assert bool(first & second) == (schedule is staggered), "the requests were not in flight as asked"


async def check_seeded(subject: Subject, prompts: slice, tokens: int) -> None:
    """Temperature 0.8 with speculation off, on, at depth 1 and 8, alone and in a batch."""
    sampling = SamplingParams(temperature=0.8, top_p=0.95)
    chosen = replace(subject, prompts=subject.prompts[prompts])
    texts = []
    async with opened(subject) as executor:
        for depth, run in itertools.product((0, 1, DEPTH), (one_by_one, staggered)):
            plain = requests(chosen, depth, tokens, sampling=sampling)
            results = await run(executor, [replace(item, seed=40 + i) for i, item in enumerate(plain)])
            texts.append([result.ids for result in results])
        other = await one_by_one(executor, [replace(requests(chosen, DEPTH, tokens, sampling=sampling)[0], seed=7)])
    assert all(text == texts[0] for text in texts)
    assert other[0].ids != texts[0][0], "the seed has no effect"


@SCHEDULES
async def test_a_tiny_llama_says_what_transformers_says(tiny: Subject, schedule: Schedule) -> None:
    await check_against_transformers(tiny, schedule)


async def test_seeded_text_of_a_tiny_llama_is_identical_at_any_depth(tiny: Subject) -> None:
    await check_seeded(tiny, slice(0, 16, 3), TOKENS)


@pytest.mark.slow
@pytest.mark.demo_model
@pytest.mark.timeout(1200)
@SCHEDULES
async def test_the_demo_model_says_what_transformers_says(demo: Subject, schedule: Schedule) -> None:
    await check_against_transformers(demo, schedule)


@pytest.mark.slow
@pytest.mark.demo_model
@pytest.mark.timeout(1200)
async def test_seeded_text_of_the_demo_model_is_identical_at_any_depth(demo: Subject) -> None:
    await check_seeded(demo, slice(6, 10), TOKENS)
