"""The drafters that are stored for the demo model: text is that of `transformers`, and with a seed that of plain
decoding, while their drafts are accepted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from builders.build import main
from tests.engines import Collected, collect, staggered
from tests.equality.conftest import Subject
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.types import Request, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.demo_model, pytest.mark.timeout(1200)]
# By default random drafters stand for them.

TOKENS = 64
SETTINGS = (SamplingParams(0.8), SamplingParams(1.0, top_p=0.9), SamplingParams(), SamplingParams(0.7, top_k=20))


@pytest.fixture(scope="module", params=["draft_model", "medusa", "mtp", "eagle", "eagle3"])
def subject(request: pytest.FixtureRequest, demo: Subject, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    directory = tmp_path_factory.mktemp(request.param) / "engine"
    argv = ["--method", request.param, "--dtype", "float32", "--runner", "eager", "--output", str(directory)]
    assert main(argv) == 0
    return replace(demo, directory=directory)


@pytest.fixture(scope="module")
def expected(demo: Subject) -> list[list[int]]:
    return demo.references(TOKENS)


async def test_greedy_text_is_that_of_transformers(subject: Subject, expected: list[list[int]]) -> None:
    executor = await open_executor(subject.directory, EngineOptions(kv_cache_mib=512), in_process=True)
    depth = executor.info().limits.max_draft_tokens
    asked = [
        Request(str(i), prompt, TOKENS, eos_ids=subject.eos_ids, max_draft_tokens=depth)
        for i, prompt in enumerate(subject.prompts)
    ]
    try:
        together = await staggered(executor, asked)
        alone = await collect(executor, replace(asked[0], request_id="alone"))
    finally:
        await executor.aclose()
    assert [result.ids for result in together] == expected and alone.ids == expected[0]
    assert tokens_per_pass(together) > 1.2


async def test_seeded_text_is_that_of_plain_decoding(subject: Subject) -> None:
    """Requests of different settings in one batch, prompts in chunks, and so little room that some begin again."""
    plain, _ = await sampled(subject, 512, speculative={"method": "none"})
    found, preemptions = await sampled(subject, 24, max_pass_tokens=128)
    assert preemptions > 0
    assert [result.ids for result in found] == [result.ids for result in plain]
    assert sum(result.stats.accepted for result in found) > 0


async def sampled(subject: Subject, kv_cache_mib: int, **options: object) -> tuple[list[Collected], int]:
    """Every second prompt, all at once, and how often a sequence was preempted."""
    settings = EngineOptions(kv_cache_mib=kv_cache_mib, **options)  # type: ignore[arg-type]
    executor = await open_executor(subject.directory, settings, in_process=True)
    depth = executor.info().limits.max_draft_tokens
    requests = [
        Request(
            str(i),
            prompt,
            TOKENS // 2,
            sampling=SETTINGS[i % len(SETTINGS)],
            seed=i,
            eos_ids=subject.eos_ids,
            max_draft_tokens=min((depth, 0, 1, depth, depth)[i % 5], depth),
        )
        for i, prompt in enumerate(subject.prompts[::2])
    ]
    try:
        results = await asyncio.gather(*(collect(executor, request) for request in requests))
        return list(results), (await executor.stats()).preemptions
    finally:
        await executor.aclose()


def tokens_per_pass(results: list[Collected]) -> float:
    return sum(result.stats.emitted for result in results) / sum(result.stats.decode_passes for result in results)
