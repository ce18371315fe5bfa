"""Our own draft-and-verify loop over plain compiled engines: text, law, log-probabilities and counts are those of the
embedded engine, whatever the cache hides."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines import collect, collect_outputs, one_by_one, staggered
from tests.fakes.installed import tensorrt_llm_double
from tests.rounds import EMBEDDED, NUCLEUS, PROMPT, Folders, ask, compiled, embedded, expected, opened, quiet_llama
from trtspec.config import EngineOptions
from trtspec.errors import EngineLost, Unsupported
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.executors.tensorrt_llm.loop import by_rows
from trtspec.types import FinishReason, Health, Request, SamplingParams, StepOutput, TokenLogprobs


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quiet_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def folders(double: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("rounds")
    return Folders(lambda method: compiled(model, method, root / method))


@pytest.fixture(scope="module")
def embedded_folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded(model, tmp_path_factory.mktemp("embedded") / "engine")


@pytest.fixture(params=["ngram", pytest.param("draft_model", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, folders: Folders) -> Path:
    return folders[request.param]


REQUESTS = [
    ask("greedy", 100),
    ask("repeated", sampling=SamplingParams(repetition_penalty=1.2)),
    ask("penalised", sampling=SamplingParams(presence_penalty=0.3, frequency_penalty=0.1)),
    ask("biased", sampling=SamplingParams(logit_bias=((60, 2.0), (50, -5.0)), bad_words=((61,), (40, 50)))),
    ask("sampled", seed=7, sampling=SamplingParams(temperature=0.9, top_k=12)),
    ask("nucleus", seed=8, sampling=NUCLEUS),
    ask("likely", seed=9, sampling=SamplingParams(temperature=1.2, min_p=0.2)),
    ask(
        "all penalties",
        seed=10,
        sampling=SamplingParams(0.8, 12, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.1),
    ),
    ask("one", 1),
    ask("stopped", stop_ids=frozenset(range(100, 180))),
    ask("held", 30, stop_ids=frozenset(range(20, 250)), sampling=SamplingParams(min_tokens=10)),
]


async def test_text_is_that_of_the_embedded_engine(folder: Path, embedded_folder: Path) -> None:
    texts = await expected(embedded_folder, REQUESTS)
    async with opened(folder) as executor:
        alone = await one_by_one(executor, REQUESTS)
        together = await staggered(executor, [replace(item, request_id=f"{item.request_id}2") for item in REQUESTS])
        plain = await one_by_one(executor, [replace(item, max_draft_tokens=0) for item in REQUESTS])
    for mine, joined, undrafted, theirs, request in zip(alone, together, plain, texts, REQUESTS, strict=True):
        assert mine.ids == joined.ids == undrafted.ids == theirs.ids, request.request_id
        assert mine.finish == joined.finish == undrafted.finish == theirs.finish
        assert not any(record.drafted for record in undrafted.passes)
    assert alone[0].stats.accepted > 10


async def test_neighbours_with_and_without_drafts_share_a_batch(folder: Path, embedded_folder: Path) -> None:
    """Beside a request that drafts, one that does not, and one that the engine draws: none changes the others."""
    drafts, plain = ask("drafts", 60), ask("plain", 90, depth=0)
    whole = ask("whole", 90, seed=4, sampling=SamplingParams(temperature=1.0))
    texts = await expected(embedded_folder, [drafts, plain])
    async with opened(folder) as executor:
        alone = await collect(executor, replace(whole, request_id="alone"))
        found = await asyncio.gather(*(collect(executor, item) for item in (drafts, plain, whole)))
    assert [item.ids for item in found] == [*(item.ids for item in texts), alone.ids]
    assert found[0].stats.accepted > 10 and not any(r.drafted for item in found[1:] for r in item.passes)
    drafted = [record.pass_index for record in found[0].passes if record.drafted]
    for other in found[1:]:
        first, last = other.passes[0].pass_index, other.passes[-1].pass_index
        assert sum(first < index < last for index in drafted) > len(drafted) / 2


async def test_drafts_shorten_the_work(folder: Path) -> None:
    async with opened(folder) as executor:
        found = await collect(executor, ask(max_tokens=100))
        assert not executor.info().derived_statistics
    assert found.passes[0].prefill and not found.passes[0].drafted
    assert found.stats.decode_passes < 60 and found.stats.completion_tokens == 100


@pytest.mark.slow
async def test_a_perfect_draft_model_is_right_all_the_time(folders: Folders) -> None:
    async with opened(folders["draft_model"]) as executor:
        found = await collect(executor, ask(max_tokens=28))
    assert [(record.drafted, record.accepted) for record in found.passes] == [(0, 0), (8, 8), (8, 8), (8, 8)]


async def test_rows_that_the_cache_hides_change_nothing(folder: Path) -> None:
    """The same text again, whose drafts are all cached, and several at once: what is in their place is of others."""
    async with opened(folder) as executor:
        once = await collect(executor, ask("once", 60))
        again = await collect(executor, ask("again", 60))
        three = await asyncio.gather(*(collect(executor, ask(str(i), 60)) for i in range(3)))
    assert all(item.ids == once.ids for item in (again, *three))
    assert again.stats.decode_passes <= 2 * 60


async def test_a_position_that_is_not_decided_is_the_engines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pass has no draft, and the round that found it counts."""
    undecided, decide = {len(PROMPT) + 5, len(PROMPT) + 6, len(PROMPT) + 20}, by_rows.decide

    def sometimes(row: object, where: object, vocabulary: int) -> int | None:
        return None if where.positions[0] in undecided else decide(row, where, vocabulary)

    async with opened(folder) as executor:
        whole = await collect(executor, ask("a"))
        monkeypatch.setattr(by_rows, "decide", sometimes)
        found = await collect(executor, ask("b"))
    assert found.ids == whole.ids
    plain = {sum(r.emitted for r in found.passes[:i]) for i, r in enumerate(found.passes) if not r.drafted}
    assert {5, 6, 20} <= plain


async def test_the_whole_law_is_drawn_by_the_engine(folder: Path) -> None:
    whole = SamplingParams(temperature=1.0)
    async with opened(folder) as executor:
        one, other, same = await one_by_one(
            executor,
            [ask("a", seed=1, sampling=whole), ask("b", seed=2, sampling=whole), ask("c", seed=1, sampling=whole)],
        )
        told = await logprobs(executor, ask("d", seed=1, sampling=whole, logprobs=1))
    assert one.ids == same.ids != other.ids
    assert not any(record.drafted for record in one.passes)
    assert len(told) == 40


async def test_the_whole_law_can_be_refused(folders: Folders) -> None:
    """Where it would draft; without drafts it is what was asked for."""
    whole = SamplingParams(temperature=1.0)
    async with opened(folders["ngram"], EngineOptions(full_vocabulary="refuse")) as executor:
        with pytest.raises(Unsupported, match="without top_k, top_p or min_p"):
            await collect(executor, ask(sampling=whole))
        assert len((await collect(executor, ask(depth=0, sampling=whole))).ids) == 40
        assert len((await collect(executor, ask(seed=7, sampling=NUCLEUS))).ids) == 40


async def logprobs(executor: Executor, request: Request) -> list[TokenLogprobs]:
    events = [event async for event in executor.generate(request)]
    return [item for event in events if isinstance(event, StepOutput) for item in event.logprobs]


async def test_log_probabilities_are_those_of_the_embedded_engine(folder: Path, embedded_folder: Path) -> None:
    async with opened(embedded_folder, EMBEDDED) as executor:
        theirs_all = await logprobs(executor, ask(logprobs=3))
    async with opened(folder) as executor:
        for depth in (8, 0):
            found = await logprobs(executor, ask(logprobs=3, depth=depth))
            assert len(found) == 40
            for mine, theirs in zip(found, theirs_all, strict=True):
                assert mine.chosen.token_id == theirs.chosen.token_id and mine.chosen.rank == theirs.chosen.rank
                assert mine.chosen.logprob == pytest.approx(theirs.chosen.logprob, abs=1e-4)
                assert [item.token_id for item in mine.top] == [item.token_id for item in theirs.top]


async def test_outputs_of_one_request_have_their_own_noise(folder: Path, embedded_folder: Path) -> None:
    request = ask(n=3, seed=5, sampling=NUCLEUS)
    async with opened(embedded_folder, EMBEDDED) as executor:
        outputs = await collect_outputs(executor, request)
    async with opened(folder) as executor:
        found = await collect_outputs(executor, request)
    assert [item.ids for item in found] == [item.ids for item in outputs]


async def test_a_text_can_fill_the_context(folder: Path) -> None:
    async with opened(folder) as executor:
        limit = executor.info().limits.max_context_tokens
        found = await collect(executor, ask(max_tokens=limit - len(PROMPT)))
    assert limit == 256 and len(found.ids) == limit - len(PROMPT)
    assert found.finish is not None and found.finish.reason is FinishReason.LENGTH


async def test_cancelled_rounds_leave_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`opened` closes in this process, which asserts that nothing is left."""
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.01")
    async with opened(folder) as executor:
        for count in (1, 2, 4):
            events = executor.generate(ask(str(count), 200))
            for _ in range(count):
                await anext(events)
            await events.aclose()
        assert len((await collect(executor, ask("after", 12))).ids) == 12


async def test_speculation_can_be_left_out_when_it_is_served(folder: Path) -> None:
    options = EngineOptions(speculative={"method": "none"})
    async with opened(folder, options) as executor:
        assert executor.info().limits.max_draft_tokens == 0
        found = await collect(executor, ask(depth=0))
        assert len(found.ids) == 40 and not found.stats.spec_steps


async def test_it_runs_in_a_worker_process(folder: Path) -> None:
    executor = await open_executor(folder, EngineOptions())
    try:
        assert (await collect(executor, ask(max_tokens=80))).stats.accepted > 10
    finally:
        await executor.aclose()


MARK = "TRTSPEC_TEST_MARK"
"""In the environment of all processes that a test starts, even of orphans."""


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, uuid.uuid4().hex)


def draft_processes() -> list[int]:
    """Of any worker of this test. What such a process starts has its name, too, until it becomes another program."""
    parents, mark = {}, f"{MARK}={os.environ[MARK]}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
            if ours and b"draft_worker" in (entry / "cmdline").read_bytes():
                parents[int(entry.name)] = parent_of(int(entry.name))
    return [process for process, parent in parents.items() if parent not in parents]


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
@pytest.mark.usefixtures("marked")
async def test_a_draft_engine_that_dies_takes_its_worker_along(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests end, both processes are started again, and afterwards neither is left."""
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    executor = await open_executor(folders["draft_model"], EngineOptions())
    try:
        events = executor.generate(ask(max_tokens=200))
        await anext(events)
        (process,) = draft_processes()
        os.kill(process, signal.SIGKILL)
        with pytest.raises(EngineLost):
            async for _ in events:
                pass
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert len((await collect(executor, ask())).ids) == 40
        assert len(draft_processes()) == 1
    finally:
        await executor.aclose()
    assert draft_processes() == []


@pytest.mark.slow
@pytest.mark.usefixtures("marked")
async def test_a_worker_that_is_killed_takes_its_draft_engine_along(folders: Folders) -> None:
    executor = await open_executor(folders["draft_model"], EngineOptions())
    try:
        (draft,) = draft_processes()
        os.kill(parent_of(draft), signal.SIGKILL)
        assert await executor.wait_for_change(Health.SERVING) is Health.RESTARTING
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert len((await collect(executor, ask())).ids) == 40
        assert len(draft_processes()) == 1 and draft not in draft_processes()
    finally:
        await executor.aclose()
    assert draft_processes() == []


@pytest.mark.parametrize("sampling", [SamplingParams(), NUCLEUS], ids=["greedy", "sampled"])
async def test_a_deadline_ends_an_output_between_rounds(
    folder: Path, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    async with opened(folder) as executor:
        found = await collect(executor, ask(max_tokens=240, sampling=sampling, deadline=time.monotonic() + 0.3))
    assert found.finish is not None and found.finish.reason is FinishReason.DEADLINE
    assert 0 < len(found.ids) < 200


@pytest.mark.slow
async def test_the_kernels_themselves_tell_the_rows(
    folders: Folders, embedded_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the network holds run by Triton's interpreter, and not by its twin."""
    monkeypatch.setenv("TRTLLM_DOUBLE_KERNELS", "1")
    asked = [ask("greedy", 40), ask("nucleus", 12, seed=8, sampling=NUCLEUS)]
    texts = await expected(embedded_folder, asked)
    async with opened(folders["ngram"]) as executor:
        found = await one_by_one(executor, asked)
    assert [item.ids for item in found] == [item.ids for item in texts]
    assert found[0].stats.accepted > 2
