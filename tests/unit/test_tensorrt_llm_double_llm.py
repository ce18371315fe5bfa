"""The double's LLM API: what its configurations refuse, and how its outputs come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from scripts.gpu_check.modules import write_glm
from tests.checkpoint_files import edit_config, edit_weights
from tests.draft_files import deepseek_tensors, random_tensors, write_eagle3
from tests.fakes.installed import tensorrt_llm_double
from tests.models import tiny_llama, tiny_model

PROMPT = [10, 11, 12] * 12
BATCH = 4


@pytest.fixture(scope="module")
def double() -> Iterator[ModuleType]:
    with tensorrt_llm_double() as package:
        yield package


@pytest.fixture(scope="module")
def api(double: ModuleType) -> Any:
    import tensorrt_llm.llmapi

    return tensorrt_llm.llmapi


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deep enough for EAGLE-3."""
    return tiny_llama(tmp_path_factory.mktemp("llama"), layers=7)


@pytest.fixture
def glm(tmp_path: Path) -> Path:
    """With a module for MTP."""
    plain = tiny_model(tmp_path / "qwen3", "Qwen3ForCausalLM", head_dim=16, tie=False)
    module = deepseek_tensors(2, 1) | random_tensors({f"model.layers.2.self_attn.{n}_norm.weight": (16,) for n in "qk"})
    write_glm(tmp_path / "glm", plain, module)
    return tmp_path / "glm"


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafter")
    write_eagle3(path)
    return path


@asynccontextmanager
async def opened(double: Any, path: Path, **more: Any) -> AsyncIterator[Any]:
    given = {"skip_tokenizer_init": True, "max_batch_size": BATCH, "disable_overlap_scheduler": True}
    llm = double.LLM(path, **(given | more))
    try:
        yield llm
    finally:
        llm.shutdown()
        assert "trtllm-double" not in [thread.name for thread in threading.enumerate()]


def params(double: Any, **more: Any) -> Any:
    return double.SamplingParams(**({"end_id": 2, "max_tokens": 12} | more))


async def text(double: Any, path: Path, **more: Any) -> list[int]:
    async with opened(double, path, **more) as llm:
        output = await llm.generate_async(PROMPT, params(double))
        return list(output.outputs[0].token_ids)


async def test_outputs_stream_and_end(double: Any, llama: Path) -> None:
    async with opened(double, llama) as llm:
        output = llm.generate_async(PROMPT, params(double), streaming=True)
        new: list[int] = []
        async for step in output:
            assert step is output
            new += step.outputs[0].token_ids_diff
        whole = await llm.generate_async(PROMPT, params(double)).aresult()
        (only,) = [step async for step in llm.generate_async(PROMPT, params(double))]
    assert new == output.outputs[0].token_ids == whole.outputs[0].token_ids == only.outputs[0].token_ids
    assert (output.finished, output.outputs[0].finish_reason, output.decoding_iter) == (True, "length", 12)
    assert output.avg_decoded_tokens_per_iter == 1.0 and output.prompt_token_ids == PROMPT
    assert (output.cached_tokens, whole.cached_tokens) == (0, len(PROMPT) - 1)  # parts of blocks count


async def test_every_method_says_the_same(double: Any, api: Any, llama: Path, drafter: Path) -> None:
    expected = await text(double, llama)
    for config in (
        api.NGramDecodingConfig(max_draft_len=4, max_matching_ngram_size=2),
        api.DraftTargetDecodingConfig(max_draft_len=3, speculative_model=llama),
        api.EagleDecodingConfig(max_draft_len=3, speculative_model=str(drafter)),
    ):
        assert await text(double, llama, speculative_config=config) == expected, config


async def test_multi_token_prediction_says_the_same(double: Any, api: Any, glm: Path) -> None:
    expected = await text(double, glm)
    assert len(set(expected)) > 1
    for depth in (1, 3):  # the one module again where drafts are deeper
        config = api.MTPDecodingConfig(num_nextn_predict_layers=depth)
        assert await text(double, glm, speculative_config=config) == expected
    edit_weights(glm, {"model.layers.2.mlp.experts.1.down_proj.weight": torch.ones(64, 128)})
    with pytest.raises(RuntimeError, match="no experts that add anything"):
        await text(double, glm)


async def test_drafts_come_several_at_a_time_and_are_counted(double: Any, api: Any, llama: Path) -> None:
    config = api.DraftTargetDecodingConfig(max_draft_len=3, speculative_model=llama)
    async with opened(double, llama, speculative_config=config, enable_iter_perf_stats=True) as llm:
        output = await llm.generate_async(PROMPT, params(double, max_tokens=13))
        stats = [item async for item in llm.get_stats_async(0.05)]
    assert output.decoding_iter == 4 and output.avg_decoded_tokens_per_iter == 13 / 4
    assert [item["specDecodingStats"] is None for item in stats] == [True, False, False, False]
    last = stats[-1]
    assert last["specDecodingStats"]["acceptanceLength"] == 4.0 and last["iter"] == 4
    assert last["numActiveRequests"] == 1 and last["kvCacheStats"]["tokensPerBlock"] == 32
    async with opened(double, llama) as llm:
        await llm.generate_async(PROMPT, params(double))
        assert [item async for item in llm.get_stats_async(0.05)] == []


async def test_stops(double: Any, llama: Path) -> None:
    said = await text(double, llama)
    async with opened(double, llama) as llm:

        async def run(**more: Any) -> Any:
            return (await llm.generate_async(PROMPT, params(double, **more))).outputs[0]

        stopped, kept = (
            await run(stop_token_ids=[said[4]]),
            await run(stop_token_ids=[said[4]], include_stop_str_in_output=True),
        )
        ended, ignored = await run(end_id=said[4]), await run(end_id=said[4], ignore_eos=True)
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == (said[:4], "stop", said[4])
    assert (kept.token_ids, kept.stop_reason) == (said[:5], said[4])
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == (said[:4], "stop", None)
    assert ignored.token_ids == said


async def test_aborting_ends_an_output(double: Any, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    async with opened(double, llama) as llm:
        output = llm.generate_async(PROMPT, params(double, max_tokens=400), streaming=True)
        async for _ in output:
            output.abort()
    assert output.aborted() and output.finished and output.outputs[0].finish_reason == "cancelled"


async def test_failures_are_of_their_request(double: Any, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorrt_llm.executor.utils import RequestError

    monkeypatch.setenv("TRTLLM_DOUBLE_ERROR_EVERY", "2")
    async with opened(double, llama, max_seq_len=64, max_num_tokens=100) as llm:
        first = llm.generate_async(PROMPT, params(double, max_tokens=400), streaming=True)
        second = llm.generate_async(PROMPT, params(double), streaming=True)
        with pytest.raises(RequestError, match="planted"):
            await anext(second)
        assert len((await first).outputs[0].token_ids) == 64 - len(PROMPT)  # cut without a word
        with pytest.raises(RequestError, match="max_seq_len"):
            await llm.generate_async([1] * 64, params(double))
        with pytest.raises(RequestError, match="should not exceed max_num_tokens"):
            llm.generate_async([1] * 101, params(double))
    with pytest.raises(RuntimeError, match="LLM is shutting down"):
        llm.generate_async(PROMPT, params(double))


async def test_what_cannot_be_asked_for(double: Any, llama: Path) -> None:
    async with opened(double, llama) as llm:
        with pytest.raises(ValueError, match="end_id"):
            llm.generate_async(PROMPT, double.SamplingParams())
        with pytest.raises(TypeError):
            llm.generate_async("text", params(double))
        with pytest.raises(TypeError):
            llm.generate_async(PROMPT, {"end_id": 2})
        with pytest.raises(TypeError):
            llm.generate_async(PROMPT, params(double), stream=True)
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(llm.generate_async, PROMPT, params(double))


def test_greedy_is_what_upstream_decides(double: Any) -> None:
    assert double.SamplingParams()._greedy and double.SamplingParams(temperature=0.0, top_p=0.9)._greedy
    assert double.SamplingParams(top_k=1, temperature=2.0)._greedy and not double.SamplingParams(top_k=0)._greedy


Make = Callable[[Any, Any], object]
REFUSED: dict[str, tuple[Make, str]] = {
    "an unknown argument": (lambda d, a: d.LLM("m", max_batchsize=4), "LLM got invalid argument: max_batchsize"),
    "a wrong type": (lambda d, a: d.LLM("m", max_batch_size="4"), "max_batch_size must be"),
    "a plain mapping": (lambda d, a: d.LLM("m", kv_cache_config={}), "kv_cache_config must be"),
    "another's configuration": (
        lambda d, a: d.LLM("m", skip_tokenizer_init=True, speculative_config=a.MedusaDecodingConfig(max_draft_len=3)),
        "Medusa does not support backend pytorch",
    ),
    "n-grams of nothing": (
        lambda d, a: d.LLM("m", skip_tokenizer_init=True, speculative_config=a.NGramDecodingConfig(max_draft_len=3)),
        "max_matching_ngram_size",
    ),
    "EAGLE without a depth": (lambda d, a: a.EagleDecodingConfig(speculative_model="x"), "max_draft_len is required"),
    "EAGLE without a drafter": (
        lambda d, a: d.LLM("m", skip_tokenizer_init=True, speculative_config=a.EagleDecodingConfig(max_draft_len=3)),
        "draft model must be specified",
    ),
    "drafts between passes that overlap": (
        lambda d, a: d.LLM(
            "m",
            skip_tokenizer_init=True,
            speculative_config=a.NGramDecodingConfig(max_draft_len=3, max_matching_ngram_size=2),
        ),
        "disable_overlap_scheduler",
    ),
    "an unknown field": (lambda d, a: a.NGramDecodingConfig(max_draft_length=3), "max_draft_length"),
    "another version's field": (lambda d, a: a.EagleDecodingConfig(speculative_model_dir="x"), "speculative_model_dir"),
    "a schedule of another depth": (
        lambda d, a: a.NGramDecodingConfig(max_draft_len=3, draft_len_schedule={1: 4}),
        "draft_len_schedule",
    ),
    "a schedule that does not begin": (
        lambda d, a: a.NGramDecodingConfig(max_draft_len=3, draft_len_schedule={2: 3}),
        "batch size 1",
    ),
    "a schedule for no request": (
        lambda d, a: a.NGramDecodingConfig(max_draft_len=3, draft_len_schedule={0: 3, 1: 3}),
        "batch sizes must be >= 1",
    ),
    "a schedule that goes deeper": (
        lambda d, a: a.NGramDecodingConfig(max_draft_len=3, draft_len_schedule={1: 3, 2: 4}),
        "exceed max_draft_len",
    ),
    "a schedule of texts": (lambda d, a: a.NGramDecodingConfig(max_draft_len=3, draft_len_schedule={"1": 3}), "sched"),
    "a negative window": (lambda d, a: a.NGramDecodingConfig(acceptance_window=-1), "acceptance_window"),
    "a limit that would be ignored": (
        lambda d, a: d.LLM("m", skip_tokenizer_init=True, speculative_config=a.MTPDecodingConfig(max_concurrency=1)),
        "max_concurrency would be ignored",
    ),
    "too much memory": (lambda d, a: a.KvCacheConfig(free_gpu_memory_fraction=1.5), "free_gpu_memory_fraction"),
    "a probability above 1": (lambda d, a: d.SamplingParams(top_p=1.5), "top_p"),
    "a negative temperature": (lambda d, a: d.SamplingParams(temperature=-1.0), "temperature"),
    "fewer than it returns": (lambda d, a: d.SamplingParams(n=3, best_of=2), "best_of"),
    "the same several times": (lambda d, a: d.SamplingParams(n=2), "multiple"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_settings_are_value_errors(double: Any, api: Any, what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        make(double, api)


def test_multi_token_prediction_needs_a_family_and_modules(double: Any, api: Any, llama: Path, glm: Path) -> None:
    given = {"skip_tokenizer_init": True, "max_batch_size": BATCH, "speculative_config": api.MTPDecodingConfig()}
    with pytest.raises(ValueError, match="Model type llama not supported for MTP"):
        double.LLM(llama, **given)
    edit_config(glm, num_nextn_predict_layers=0)
    with pytest.raises(TypeError, match="no modules for MTP"):
        double.LLM(glm, **given)


def test_validators_set_what_belongs_together(api: Any) -> None:
    eagle = api.EagleDecodingConfig(max_draft_len=3, max_total_draft_tokens=9)
    assert (eagle.max_total_draft_tokens, eagle.num_eagle_layers) == (3, 3)
    assert api.MTPDecodingConfig(num_nextn_predict_layers=2).max_draft_len == 2
    assert isinstance(eagle, api.DecodingBaseConfig)


async def together(double: Any, path: Path, config: Any) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Texts of two requests of which one ends early, and the iterations."""
    async with opened(double, path, speculative_config=config, enable_iter_perf_stats=True) as llm:
        outputs = [llm.generate_async(PROMPT, params(double, max_tokens=most)) for most in (60, 100)]
        for output in outputs:
            await output
        return [output.outputs[0].token_ids for output in outputs], [i async for i in llm.get_stats_async(0.05)]


def drafted(iterations: list[dict[str, Any]], active: int) -> set[int]:
    """Draft tokens for each request of the iterations with so many active ones; prompts and last places draft less."""
    decoding = [item for item in iterations if item["numActiveRequests"] == active]
    whole = [item for item in decoding if item["inflightBatchingStats"]["numContextRequests"] == 0]
    stats = [item["specDecodingStats"] for item in whole[:-1]]
    return {0 if item is None else item["numDraftTokens"] // item["numRequestsWithDraftTokens"] for item in stats}


@pytest.fixture(scope="module")
def plain(double: Any, llama: Path) -> list[list[int]]:
    """What both say without drafts."""
    return asyncio.run(together(double, llama, None))[0]


@pytest.mark.parametrize(
    ("limits", "of_two"),
    [
        ({}, 3),
        ({"max_concurrency": 1}, 0),
        ({"max_concurrency": 2}, 3),
        ({"draft_len_schedule": {2: 0, 1: 3}}, 0),
        ({"draft_len_schedule": {1: 3, 2: 2}}, 2),
    ],
)
async def test_drafts_are_limited_by_how_many_run(
    limits: dict[str, Any],
    of_two: int,
    double: Any,
    api: Any,
    llama: Path,
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.005")
    config = api.DraftTargetDecodingConfig(max_draft_len=3, speculative_model=llama, **limits)
    texts, iterations = await together(double, llama, config)
    assert texts == plain
    assert max(drafted(iterations, 2)) == of_two and max(drafted(iterations, 1)) == 3


async def test_a_gate_that_closed_stays_closed(double: Any, api: Any, llama: Path) -> None:
    """All is accepted, and that is still less than the threshold asks for: the prompt's own iteration counts."""
    gate = {"acceptance_window": 2, "acceptance_length_threshold": 3.0}
    config = api.DraftTargetDecodingConfig(max_draft_len=3, speculative_model=llama, **gate)
    async with opened(double, llama, speculative_config=config) as llm:
        outputs = [await llm.generate_async(PROMPT, params(double, max_tokens=13)) for _ in range(4)]
    assert [output.decoding_iter for output in outputs] == [4, 4, 13, 13]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    config = api.DraftTargetDecodingConfig(
        max_draft_len=3, speculative_model=llama, acceptance_window=1, acceptance_length_threshold=2.0
    )
    async with opened(double, llama, speculative_config=config) as llm:
        outputs = [await llm.generate_async(PROMPT, params(double, max_tokens=13)) for _ in range(3)]
    assert [output.decoding_iter for output in outputs] == [4, 4, 4]
