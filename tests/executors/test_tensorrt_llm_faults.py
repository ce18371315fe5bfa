"""The loop over TensorRT-LLM's executor, where queues are full, time is over, readers leave and statistics overflow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from builders.build import main
from tests.engines import Collected, collect
from tests.fakes.installed import tensorrt_llm_double
from trtspec.config import EmbeddedOptions, EngineOptions, TensorRtLlmOptions
from trtspec.errors import (
    ConfigError,
    DeadlineExceeded,
    EngineFolderError,
    EngineLost,
    InvalidField,
    Overloaded,
    RequestError,
    SpeculationRefused,
    Unsupported,
)
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.executors.tensorrt_llm import engine_spec, executor_arguments
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Finish, FinishReason, Health, Method, Request, SamplingParams, Started, StepOutput

PROMPT = (40, 50, 60, 40, 50, 60, 40)
FLOWS = ("engine", "pytorch")


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def folders(double: None, engine_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("loops")
    argv = ["--backend", "tensorrt_llm", "--target", str(engine_folder.parent / "model"), "--max-batch-size", "4"]
    argv += ["--timing-cache", str(root / "timings")]
    for flow in FLOWS:
        assert main([*argv, "--method", "none", "--flow", flow, "--output", str(root / flow)]) == 0
    assert main([*argv, "--method", "lookahead", "--output", str(root / "lookahead")]) == 0
    return {name: root / name for name in (*FLOWS, "lookahead")}


@asynccontextmanager
async def opened(folder: Path, options: EngineOptions | None = None) -> AsyncIterator[Executor]:
    """In this process, so that the engine's own integrity is asserted when it is closed."""
    executor = await open_executor(folder, options or EngineOptions(), in_process=True)
    try:
        yield executor
    finally:
        await executor.aclose()


def ask(name: str, max_tokens: int = 12, **changes: object) -> Request:
    return Request(name, PROMPT, max_tokens, **changes)


async def test_a_burst_beyond_the_queue_is_refused_at_once_and_the_rest_is_answered(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_arguments, "_MOST_QUEUED", 3)
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    async with opened(folders["engine"]) as executor:
        asked = [collect(executor, ask(str(i))) for i in range(40)]
        answered = await asyncio.gather(*asked, return_exceptions=True)
        refused = [item for item in answered if isinstance(item, Overloaded)]
        whole = [item for item in answered if isinstance(item, Collected)]
        assert refused and whole and len(refused) + len(whole) == 40
        assert {len(item.ids) for item in whole} == {12}
        assert len((await collect(executor, ask("after"))).ids) == 12


async def test_all_outputs_of_a_request_are_queued_or_none(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_arguments, "_MOST_QUEUED", 2)
    async with opened(folders["engine"]) as executor:
        with pytest.raises(Overloaded):
            await collect(executor, ask("three", n=3))
        assert len((await collect(executor, ask("one"))).ids) == 12


async def test_statistics_that_overflow_lose_iterations_and_nothing_else(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_arguments, "_MOST_ITERATIONS", 2)
    async with opened(folders["engine"]) as executor:
        before = (await executor.stats()).passes
        await asyncio.gather(*(collect(executor, ask(str(i), 50)) for i in range(6)))
        stats = await executor.stats()
        assert stats.passes >= before + 50 and (stats.running, stats.waiting) == (0, 0)
        assert stats.free_blocks == stats.total_blocks > 0


@pytest.mark.parametrize("flow", FLOWS)
async def test_time_that_is_over_ends_an_output_with_its_text_so_far(
    flow: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    async with opened(folders[flow]) as executor:
        result = await collect(executor, ask("a", 1000, deadline=time.monotonic() + 0.5))
        assert result.finish == Finish(FinishReason.DEADLINE) and 0 < len(result.ids) < 200
        assert len((await collect(executor, ask("b"))).ids) == 12


@pytest.mark.parametrize("flow", FLOWS)
async def test_time_that_is_over_in_the_queue_is_as_if_the_request_had_never_come(
    flow: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    async with opened(folders[flow], EngineOptions(max_batch_size=1)) as executor:
        running = asyncio.create_task(collect(executor, ask("running", 100)))
        await asyncio.sleep(0.1)
        with pytest.raises(DeadlineExceeded):
            await collect(executor, ask("late", deadline=time.monotonic() + 0.3))
        assert len((await running).ids) == 100


@pytest.mark.parametrize("flow", FLOWS)
async def test_a_reader_that_leaves_frees_its_place(
    flow: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(folders[flow], EngineOptions(max_batch_size=1)) as executor:
        for _ in range(3):
            async with aclosing(executor.generate(ask("endless", 1500))) as events:
                assert isinstance(await anext(events), Started)
                assert isinstance(await anext(events), StepOutput)
        assert len((await collect(executor, ask("next"))).ids) == 12


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("place", [0, 3])
async def test_ends_of_the_text_and_stop_ids_come_with_the_text(
    flow: str, place: int, folders: dict[str, Path]
) -> None:
    """TensorRT-LLM keeps an end of the text to itself, and tells a stop id only if asked."""
    async with opened(folders[flow]) as executor:
        free = (await collect(executor, ask("free", 20))).ids
        end = free[place]
        assert end not in free[:place]
        stopped = await collect(executor, ask("stop", 20, stop_ids=frozenset({end})))
        ended = await collect(executor, ask("end", 20, eos_ids=frozenset({end})))
        other = await collect(executor, ask("other", 20, eos_ids=frozenset({end, 0})))
        assert stopped.ids == ended.ids == other.ids == free[: place + 1]
        assert stopped.finish == Finish(FinishReason.STOP, end)
        assert ended.finish == other.finish == Finish(FinishReason.EOS, end)


@pytest.mark.parametrize(
    ("flow", "change", "kind", "message"),
    [
        ("engine", {"logprobs": 1}, Unsupported, "logprobs: TensorRT-LLM returns them for the chosen token only"),
        ("engine", {"prompt_logprobs": 1}, Unsupported, "prompt_logprobs: "),
        ("engine", {"sampling": SamplingParams(0.5, top_k=2000)}, InvalidField, "sampling.top_k is 2000"),
        ("pytorch", {"sampling": SamplingParams(min_tokens=2)}, Unsupported, "min_tokens: "),
        ("pytorch", {"priority": 1}, Unsupported, "priority: "),
        ("lookahead", {"sampling": SamplingParams(0.5), "max_draft_tokens": 2}, Unsupported, "temperature: "),
        ("lookahead", {"max_draft_tokens": 0}, SpeculationRefused, "speculation_off: "),
        ("lookahead", {"max_draft_tokens": 1}, SpeculationRefused, "max_draft_tokens: "),
    ],
)
async def test_what_a_mode_would_ignore_never_reaches_it(
    flow: str, change: dict[str, object], kind: type[RequestError], message: str, folders: dict[str, Path]
) -> None:
    async with opened(folders[flow]) as executor:
        with pytest.raises(kind, match=message):
            await collect(executor, ask("refused", **change))


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": SamplingParams(0.8, top_k=5, top_p=0.9, min_p=0.01)},
        {"sampling": SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5)},
        {"sampling": SamplingParams(logit_bias=((7, 100.0),))},
        {"sampling": SamplingParams(bad_words=((7,), (40, 50)))},
        {"sampling": SamplingParams(min_tokens=5), "eos_ids": frozenset({0})},
        {"priority": 50, "tenant": "a", "n": 2},
    ],
)
async def test_what_the_plain_engine_honours_is_passed_as_its_types_want_it(
    change: dict[str, object], folders: dict[str, Path]
) -> None:
    async with opened(folders["engine"]) as executor:
        outputs = [event async for event in executor.generate(ask("a", **change)) if isinstance(event, StepOutput)]
        ids = [id_ for output in outputs if output.output_index == 0 for id_ in output.token_ids]
        assert len(ids) == 12
        if "logit_bias" in str(change) and isinstance(sampling := change.get("sampling"), SamplingParams):
            assert (set(ids) == {7}) is bool(sampling.logit_bias)


async def test_memory_that_is_too_small_names_the_folder(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_OOM", "1")
    for flow in FLOWS:
        with pytest.raises(EngineFolderError, match=rf"{flow}: TensorRT-LLM cannot .*out of memory"):
            await open_executor(folders[flow], EngineOptions(), in_process=True)


BOTH = {"kv_cache_mib", *(item.name for item in fields(TensorRtLlmOptions))}


@pytest.mark.parametrize("name", [item.name for item in fields(EmbeddedOptions) if item.name not in BOTH])
async def test_an_embedded_engines_default_is_refused_where_it_is_given(name: str, folders: dict[str, Path]) -> None:
    given = {name: getattr(EmbeddedOptions(), name)}
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} is for embedded engines"):
        await open_executor(folders["engine"], EngineOptions(**given), in_process=True)


async def test_the_pool_is_bounded_where_its_size_is_given(folders: dict[str, Path]) -> None:
    """As large as the embedded default, too."""
    from trtspec.executors.tensorrt_llm.compiled_opening import run_time_arguments

    folder, given = engine_spec.read(folders["engine"]), EngineOptions(kv_cache_mib=EmbeddedOptions().kv_cache_mib)
    pools = [
        run_time_arguments(TARGET, folder, SpeculativeConfig(Method.NONE), options)["kv_cache_config"]
        for options in (EngineOptions(), given)
    ]
    assert pools[0]["free_gpu_memory_fraction"] is not None and pools[0]["max_tokens"] is None
    tokens = 1024 * 2**20 // folder.engines[TARGET].kv_bytes_per_token
    assert pools[1]["free_gpu_memory_fraction"] is None and pools[1]["max_tokens"] == tokens
    with pytest.raises(ConfigError, match="--kv-cache-mib: the pytorch flow takes a share"):
        await open_executor(folders["pytorch"], given, in_process=True)


async def test_an_engine_that_always_drafts_is_not_opened_without(folders: dict[str, Path]) -> None:
    options = EngineOptions(speculative={"method": "none"})
    with pytest.raises(ConfigError, match="compiled for lookahead, which it cannot leave out"):
        await open_executor(folders["lookahead"], options, in_process=True)


@pytest.mark.slow
async def test_a_hanging_llm_is_noticed(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker process, which ends and is started again."""
    monkeypatch.setenv("TRTLLM_DOUBLE_HANG_AT", "20")
    executor = await open_executor(folders["pytorch"], EngineOptions(stall_seconds=1))
    try:
        with pytest.raises(EngineLost):
            await collect(executor, ask("a", 400))
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert len((await collect(executor, ask("b"))).ids) == 12
    finally:
        await executor.aclose()
