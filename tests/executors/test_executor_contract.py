"""What every executor keeps to: the same suite over our engine in a thread, in a worker process and shared among
front-ends, and over both flows of TensorRT-LLM, whose place the strict double takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, nullcontext
from pathlib import Path

import pytest
import pytest_asyncio

from builders.build import main
from tests.engines import collect, collect_outputs, one_by_one, staggered
from tests.executors.hubs import joined
from tests.fakes.installed import need_plugins, tensorrt_llm_double
from trtspec.capabilities import Support, capabilities
from trtspec.config import EngineOptions
from trtspec.errors import DuplicateRequest, EngineLost, InvalidField, PromptTooLong, SpeculationRefused
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.executors.hub import Hub
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.types import (
    EngineStats,
    Finish,
    FinishReason,
    Health,
    Method,
    Request,
    RequestEvent,
    SamplingParams,
    Started,
    StepOutput,
)

OPTIONS = EngineOptions(kv_cache_mib=8, max_batch_size=4, threads=1)


pytestmark = pytest.mark.asyncio(loop_scope="module")


KINDS = (
    *("thread", "process", "front-end", "tensorrt_llm engine ngram"),
    *(
        pytest.param(f"tensorrt_llm {kind}", marks=pytest.mark.slow)
        for kind in ("engine", "pytorch", "engine ngram engine")
    ),
)
"""The place, or a backend with its flow, its method and its rule of acceptance."""

PLAIN = ("tensorrt_llm engine", "tensorrt_llm pytorch")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with tensorrt_llm_double() if request.param.startswith("tensorrt_llm") else nullcontext():
        yield request.param


@pytest.fixture(scope="module")
def folder(kind: str, engine_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of n-gram speculation, where the backend can switch it off; elsewhere one without."""
    backend, *flow = kind.split()
    if backend != "tensorrt_llm":
        return engine_folder
    output = tmp_path_factory.mktemp("compiled") / "engine"
    target = engine_folder.parent / "model"
    method = flow[1] if len(flow) > 1 else "none"
    config = {"method": method} | ({"acceptance": flow[2]} if len(flow) > 2 else {})
    argv = ["--backend", backend, "--flow", flow[0], "--method", method, "--target", str(target)]
    argv += ["--speculative-config", json.dumps(config)]
    argv += ["--output", str(output), "--timing-cache", str(output.with_name("timings"))]
    if flow[1:] == ["ngram"]:
        need_plugins()
    assert main([*argv, "--max-batch-size", "4", "--max-seq-len", "2048"]) == 0
    return output


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(kind: str, folder: Path) -> AsyncIterator[Executor]:
    """One for all tests: none of them may leave anything behind that another one notices."""
    options = EngineOptions(max_batch_size=4) if kind.startswith("tensorrt_llm") else OPTIONS
    executor = await open_executor(folder, options, in_process=kind in ("thread", "front-end"))
    if kind == "front-end":
        async with joined(Hub(executor)) as front:
            yield front
            await front.aclose()
    else:
        yield executor
        await executor.aclose()
    await executor.aclose()


def ask(executor: Executor, name: str = "a", max_tokens: int = 12, **changes: object) -> Request:
    """A request as deep as the engine drafts."""
    depth = executor.info().limits.max_draft_tokens
    return Request(name, (40, 50, 60, 40, 50, 60, 40), max_tokens, max_draft_tokens=depth, **changes)


def can(executor: Executor, feature: str) -> bool:
    info = executor.info()
    return capabilities(info.method, info.flow, info.acceptance)[feature].support is not Support.REFUSED


async def first(count: int, events: AsyncIterator[RequestEvent]) -> AsyncIterator[RequestEvent]:
    """So many events, without closing what they come from."""
    for _ in range(count):
        yield await anext(events)


async def settled(executor: Executor) -> EngineStats:
    """The stats once no request lives; every report of the engine is a chance."""
    while (stats := await executor.stats()).running or stats.waiting:
        await asyncio.sleep(0.01)
    return stats


async def test_a_request_starts_once_and_finishes_once(executor: Executor) -> None:
    events = [event async for event in executor.generate(ask(executor))]
    assert events[0] in (Started("a", cached_tokens=0), Started("a", cached_tokens=None))
    outputs = events[1:]
    assert all(isinstance(event, StepOutput) and event.request_id == "a" for event in outputs)
    assert [event.finish is not None for event in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].finish == Finish(FinishReason.LENGTH)
    assert sum(len(event.token_ids) for event in outputs) == 12


async def test_it_says_what_it_serves(kind: str, executor: Executor) -> None:
    info = executor.info()
    speculation = (info.method, info.limits.max_draft_tokens)
    known = {
        "embedded": ("embedded", "float32"),
        "engine": ("tensorrt_llm", "bfloat16"),  # by its own choice: prompts share blocks there
        "pytorch": ("tensorrt_llm", "float32"),
    }
    assert (info.backend, info.dtype) == known[info.flow]
    assert speculation == ((Method.NONE, 0) if kind in PLAIN else (Method.NGRAM, 8))
    assert info.limits.max_batch_size == 4
    assert info.limits.max_context_tokens <= info.limits.kv_cache_tokens
    assert executor.health() is Health.SERVING


async def test_text_does_not_depend_on_company(executor: Executor) -> None:
    requests = [ask(executor, str(i), 10 + i, seed=i if can(executor, "seed") else 0) for i in range(8)]
    alone = await one_by_one(executor, requests)
    together = await staggered(executor, requests, every=2)
    assert [result.ids for result in alone] == [result.ids for result in together]
    assert await settled(executor) and (await executor.stats()).free_blocks == (await executor.stats()).total_blocks


async def test_closing_the_iterator_frees_the_blocks_while_others_go_on(executor: Executor) -> None:
    other = asyncio.create_task(collect(executor, ask(executor, "other", 200)))
    async with aclosing(executor.generate(ask(executor, "closed", 1500))) as events:
        async for event in events:
            if isinstance(event, StepOutput):
                break
    assert len((await other).ids) == 200
    stats = await settled(executor)
    assert stats.free_blocks == stats.total_blocks


async def test_a_reader_that_falls_behind_gets_merged_outputs(executor: Executor) -> None:
    fast = await collect(executor, ask(executor))
    async with aclosing(executor.generate(ask(executor))) as events:
        assert isinstance(await anext(events), Started)
        await settled(executor)
        rest = [event async for event in events]
    assert len(rest) == 1
    assert list(rest[0].token_ids) == fast.ids
    assert len(rest[0].passes) == len(fast.passes)


async def test_several_outputs_of_one_request_come_apart_and_end_one_by_one(executor: Executor) -> None:
    sampling = SamplingParams(temperature=1.0)
    together = await collect_outputs(executor, ask(executor, max_tokens=30, sampling=sampling, seed=3, n=3))
    assert [(len(output.ids), output.finish) for output in together] == [(30, Finish(FinishReason.LENGTH))] * 3
    assert len({tuple(output.ids) for output in together}) == 3
    if can(executor, "seed"):
        alone = await collect(executor, ask(executor, max_tokens=30, sampling=sampling, seed=3))
        assert together[0].ids == alone.ids
    stats = await settled(executor)
    assert stats.free_blocks == stats.total_blocks


async def test_closing_the_iterator_ends_all_outputs(executor: Executor) -> None:
    async with aclosing(executor.generate(ask(executor, "closed", 1500, n=3))) as events:
        seen = {event.output_index async for event in first(5, events) if isinstance(event, StepOutput)}
    assert seen
    stats = await settled(executor)
    assert stats.free_blocks == stats.total_blocks


async def test_a_prompt_that_was_seen_before_is_found_but_not_by_another_tenant(executor: Executor) -> None:
    prompt = tuple(range(100, 150))
    found = []
    for name, tenant in (("first", "a"), ("again", "a"), ("other", "b")):
        async with aclosing(executor.generate(Request(name, prompt, 4, tenant=tenant))) as events:
            started = await anext(events)
            assert isinstance(started, Started)
            found.append(started.cached_tokens)
            assert len([event async for event in events]) > 0
    if None not in found:  # the PyTorch flow does not tell
        assert found in ([0, 32, 0], [0, 49, 0])  # in blocks; compiled engines may find a part of one


async def test_a_live_id_is_refused_and_free_again_after_its_end(executor: Executor) -> None:
    async with aclosing(executor.generate(ask(executor, "same", 1500))) as events:
        await anext(events)
        with pytest.raises(DuplicateRequest, match="'same'"):
            await collect(executor, ask(executor, "same"))
    assert len((await collect(executor, ask(executor, "same"))).ids) == 12


async def test_late_events_of_a_cancelled_request_never_reach_the_next_one_with_its_id(executor: Executor) -> None:
    expected = (await collect(executor, ask(executor, "same"))).ids
    for _ in range(5):
        async with aclosing(executor.generate(ask(executor, "same", 1500))) as events:
            await anext(events)
        again = await collect(executor, ask(executor, "same"))
        assert again.ids == expected
        assert again.stats.completion_tokens == 12


async def test_what_cannot_run_raises_and_the_engine_lives(executor: Executor) -> None:
    with pytest.raises(PromptTooLong):
        await collect(executor, Request("long", (5,) * 5000, 1))
    with pytest.raises(InvalidField):
        await collect(executor, Request("outside", (100_000,), 1))
    assert len((await collect(executor, ask(executor))).ids) == 12


async def test_the_same_request_object_twice_at_once_is_a_duplicate_and_harms_nothing(executor: Executor) -> None:
    request = ask(executor, "twice", 200)
    first = asyncio.create_task(collect(executor, request))
    await asyncio.sleep(0)
    with pytest.raises(DuplicateRequest):
        await collect(executor, request)
    assert len((await first).ids) == 200


async def test_nothing_waits_for_a_closed_executor(kind: str, folder: Path) -> None:
    options = EngineOptions() if kind.startswith("tensorrt_llm") else OPTIONS
    executor = await open_executor(folder, options, in_process=kind in ("thread", "front-end"))
    events = executor.generate(ask(executor, "late"))
    running = asyncio.create_task(collect(executor, ask(executor, "running", 1500)))
    await asyncio.sleep(0)
    await executor.aclose()
    with pytest.raises(EngineLost):
        await anext(events)
    with pytest.raises(EngineLost, match="closed"):
        await running
    assert executor.health() is Health.FAILED
    assert await executor.wait_for_change(Health.SERVING) is Health.FAILED


async def test_a_request_is_cancelled_from_outside(executor: Executor) -> None:
    """Its reader gets the end of each output behind what there was, and nothing after it."""
    request = ask(executor, max_tokens=1500, n=2)
    events: list[RequestEvent] = []
    async for event in executor.generate(request):
        events.append(event)
        if len(events) == 4:
            assert executor.cancel("a")
            assert not executor.cancel("a")
    ends = [event for event in events if isinstance(event, StepOutput) and event.finish]
    assert {event.output_index for event in ends} == {0, 1} and ends[-1] is events[-1]
    assert {event.finish for event in ends} == {Finish(FinishReason.CANCELLED)}
    stats = await settled(executor)
    assert stats.free_blocks == stats.total_blocks
    assert not executor.cancel("a")


async def test_drafts_are_limited_while_requests_run(executor: Executor) -> None:
    """In force at once, for what runs and for what begins; in the end the text is what it always is."""
    if not executor.info().limits.max_draft_tokens:
        with pytest.raises(SpeculationRefused, match="drafts nothing"):
            await executor.limit_speculation(SpeculationLimit(0))
        assert await executor.limit_speculation(NO_LIMIT) == NO_LIMIT
        return
    request = ask(executor, max_tokens=60)
    expected = await collect(executor, request)
    steps: list[StepOutput] = []
    changed: list[int] = []
    async for event in executor.generate(request):
        if isinstance(event, StepOutput):
            steps.append(event)
            if len(steps) in (4, 8, 12):
                limit = SpeculationLimit({4: 1, 8: 0, 12: None}[len(steps)])
                assert await executor.limit_speculation(limit) == limit == executor.speculation_limit()
                assert (await executor.stats()).limit == limit
                # Passes until then are among the outputs that are unread still.
                changed.append((await executor.stats()).passes)
    assert [id_ for step in steps for id_ in step.token_ids] == expected.ids
    passes = [item for step in steps for item in step.passes]
    assert all(item.drafted <= 1 for item in passes if changed[0] < item.pass_index < changed[1])
    with pytest.raises(InvalidField, match="max_draft_tokens"):
        await executor.limit_speculation(SpeculationLimit(1000))
    await executor.limit_speculation(SpeculationLimit(0))
    first, *rest = [event async for event in executor.generate(ask(executor))]
    assert isinstance(first, Started) and first.max_draft_tokens == 0
    assert all(item.drafted == 0 for event in rest if isinstance(event, StepOutput) for item in event.passes)
    waiting = asyncio.create_task(executor.wait_for_limit(SpeculationLimit(0)))
    assert await executor.limit_speculation(NO_LIMIT) == NO_LIMIT == await waiting
