"""The double's executor: what it says, when, and what it says instead."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders.build import main
from builders.tensorrt_llm.top_logits import TopLogits
from tests.engines import collect
from tests.fakes.installed import mpi_world, tensorrt_llm_double
from tests.models import tiny_llama
from tests.nvinfer import tensorrt_without_libraries
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.types import Request

PROMPT = [10, 11, 12] * 4
LENGTH, BATCH = 128, 4
SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=60)
FETCH = "Encountered an error when fetching new request: "
FORWARD = "Encountered an error in forwardAsync function: "
TREE = [[0], [1], [0, 0]]


@pytest.fixture(scope="module")
def double() -> Iterator[ModuleType]:
    with tensorrt_llm_double() as package:
        yield package


@pytest.fixture(scope="module")
def trtllm(double: ModuleType) -> Any:
    from tensorrt_llm.bindings import executor

    return executor


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def compile_engine(
    llama: Path, directory: Path, mode: str = "NONE", tp: int = 1, *, vocabulary: int | None = None, **more: Any
) -> Path:
    """With a vocabulary, its network tells the best logits of every position."""
    from tensorrt_llm.builder import BuildConfig, build
    from tensorrt_llm.mapping import Mapping
    from tensorrt_llm.models import LLaMAForCausalLM
    from tensorrt_llm.models.modeling_utils import SpeculativeDecodingMode

    for rank in range(tp):
        mapping = Mapping(world_size=tp, rank=rank, tp_size=tp)
        kind = LLaMAForCausalLM if vocabulary is None else telling(LLaMAForCausalLM, vocabulary)
        model = kind.from_hugging_face(str(llama), dtype="float32", mapping=mapping)
        sizes = {"max_seq_len": LENGTH, "max_batch_size": BATCH, "opt_batch_size": BATCH, "max_num_tokens": 512}
        timings = str(directory.with_name("timings"))
        config = BuildConfig(
            **(
                sizes
                | {"speculative_decoding_mode": SpeculativeDecodingMode[mode], "output_timing_cache": timings}
                | more
            )
        )
        build(model, config).save(str(directory))
    return directory


def telling(kind: Any, vocabulary: int) -> Any:
    from builders.tensorrt_llm.tapped import tapped

    return tapped(kind, TopLogits(), vocabulary=vocabulary, architecture=80, told=lambda spec, compiled: None)


@pytest.fixture(scope="module")
def with_rows(double: ModuleType, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 267 tokens the last seven are not emitted."""
    folder = tmp_path_factory.mktemp("rows")
    with tensorrt_without_libraries(folder):
        return compile_engine(llama, folder / "engine", vocabulary=260)


@pytest.fixture(scope="module")
def plain(double: ModuleType, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_engine(llama, tmp_path_factory.mktemp("plain") / "engine")


@pytest.fixture(scope="module")
def lookahead(double: ModuleType, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_engine(llama, tmp_path_factory.mktemp("ahead") / "engine", "LOOKAHEAD_DECODING", max_draft_len=15)


def with_windows(trtllm: Any, **more: Any) -> Any:
    """The configuration of a lookahead engine."""
    mode, sizes = trtllm.DecodingMode.Lookahead(), trtllm.LookaheadDecodingConfig(4, 3, 4)
    return trtllm.ExecutorConfig(decoding_config=trtllm.DecodingConfig(mode, sizes), **more)


@contextmanager
def opened(trtllm: Any, path: Path, config: Any = None, **more: Any) -> Iterator[Any]:
    """An executor that is shut down whatever happens."""
    executor = trtllm.Executor(path, trtllm.ModelType.DECODER_ONLY, config or trtllm.ExecutorConfig(**more))
    try:
        yield executor
    finally:
        executor.shutdown()
        assert "trtllm-double" not in [thread.name for thread in threading.enumerate()]


def request(trtllm: Any, prompt: list[int] | None = None, max_tokens: int = 12, **more: Any) -> Any:
    given = {"streaming": True, "output_config": trtllm.OutputConfig(exclude_input_from_output=True)}
    return trtllm.Request(prompt or PROMPT, max_tokens, **(given | more))


def responses(executor: Any, request_id: int) -> list[Any]:
    """All of a request, to its end."""
    found: list[Any] = []
    while not found or not (found[-1].has_error() or found[-1].result.is_final):
        fresh = executor.await_responses(request_id, LONG)
        assert fresh, "no response came"
        found += fresh
    return found


def results(executor: Any, asked: Any) -> list[Any]:
    return [response.result for response in responses(executor, executor.enqueue_request(asked))]


def tokens(found: list[Any]) -> list[int]:
    return [token for result in found for token in result.output_token_ids[0]]


def error(executor: Any, asked: Any) -> str:
    *_, last = responses(executor, executor.enqueue_request(asked))
    assert last.has_error()
    return str(last.error_msg)


async def embedded_text(directory: Path, prompt: list[int], count: int) -> list[int]:
    executor = await open_executor(directory, EngineOptions(threads=1), in_process=True)
    try:
        return (await collect(executor, Request("a", tuple(prompt), count))).ids
    finally:
        await executor.aclose()


def test_greedy_text_is_that_of_the_embedded_engine(trtllm: Any, plain: Path, llama: Path, tmp_path: Path) -> None:
    argv = ["--method", "none", "--target", str(llama), "--output", str(tmp_path / "engine")]
    assert main([*argv, "--backend", "embedded", "--runner", "eager", "--dtype", "float32"]) == 0
    expected = asyncio.run(embedded_text(tmp_path / "engine", PROMPT, 24))
    with opened(trtllm, plain) as executor:
        found = results(executor, request(trtllm, max_tokens=24))
        whole = results(executor, request(trtllm, max_tokens=24, streaming=False))
        with_prompt = results(executor, trtllm.Request(PROMPT, 24))
    assert tokens(found) == expected
    assert [len(result.output_token_ids[0]) for result in found] == [1] * 24
    assert [result.decoding_iter for result in found] == list(range(1, 25))
    assert [result.is_final for result in found] == [False] * 23 + [True]
    assert found[-1].finish_reasons == [trtllm.FinishReason.LENGTH]
    assert found[0].finish_reasons == [trtllm.FinishReason.NOT_FINISHED]
    assert len(whole) == 1 and tokens(whole) == expected and tokens(with_prompt) == PROMPT + expected


def test_an_engine_of_two_ranks_says_the_same(trtllm: Any, plain: Path, llama: Path, tmp_path: Path) -> None:
    divided = compile_engine(llama, tmp_path / "engine", tp=2)
    with opened(trtllm, plain) as executor:
        expected = tokens(results(executor, request(trtllm)))
    with mpi_world(2), opened(trtllm, divided) as executor:
        assert executor.can_enqueue_requests() and tokens(results(executor, request(trtllm))) == expected
    (divided / "rank1.engine").unlink()
    with pytest.raises(RuntimeError, match="rank1.engine"):
        trtllm.Executor(divided, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig())


def test_ranks_that_follow_may_be_asked_nothing(trtllm: Any, llama: Path, tmp_path: Path) -> None:
    divided = compile_engine(llama, tmp_path / "engine", tp=2)
    with mpi_world(2, rank=1), opened(trtllm, divided) as executor:
        assert not executor.can_enqueue_requests()
        with pytest.raises(RuntimeError, match="only leader rank is expected to call enqueueRequests"):
            executor.enqueue_request(request(trtllm))


def test_the_world_has_as_many_processes_as_the_engine_has_ranks(trtllm: Any, llama: Path, tmp_path: Path) -> None:
    divided = compile_engine(llama, tmp_path / "engine", tp=2)
    with mpi_world(1), pytest.raises(RuntimeError, match="MPI worldSize is expected to be equal to tp"):
        trtllm.Executor(divided, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig())


def test_speculation_says_the_same_in_fewer_steps(trtllm: Any, plain: Path, lookahead: Path) -> None:
    bias = torch.zeros(267)
    bias[33] = 1e4  # a text that repeats itself, so that lookup finds what comes
    output = trtllm.OutputConfig(exclude_input_from_output=True, return_perf_metrics=True, return_log_probs=True)
    with opened(trtllm, plain) as executor:
        expected = tokens(results(executor, request(trtllm)))
    with opened(trtllm, lookahead, with_windows(trtllm)) as executor:
        assert tokens(results(executor, request(trtllm))) == expected
        found = results(executor, request(trtllm, max_tokens=24, output_config=output, embedding_bias=bias))
    assert tokens(found) == [33] * 24
    assert max(len(result.output_token_ids[0]) for result in found) == 3
    last = found[-1]
    assert 8 < last.decoding_iter < 12
    metrics = last.request_perf_metrics.speculative_decoding
    assert metrics.total_draft_tokens == 2 * (last.decoding_iter - 1)  # the depth of each step but the prompt's
    assert metrics.total_accepted_draft_tokens == 24 - last.decoding_iter
    assert metrics.acceptance_rate == pytest.approx((24 - last.decoding_iter) / metrics.total_draft_tokens)
    assert last.avg_decoded_tokens_per_iter == pytest.approx(24 / last.decoding_iter)
    assert last.log_probs == [[0.0] * 24] and last.cum_log_probs == [0.0]


def test_stops(trtllm: Any, plain: Path) -> None:
    with opened(trtllm, plain) as executor:
        said = tokens(results(executor, request(trtllm)))
        assert len(set(said[:6])) == 6
        ended = results(executor, request(trtllm, end_id=said[4]))
        stopped = results(executor, request(trtllm, stop_words=[[said[2], said[3]], [said[5]]]))
        both = results(executor, request(trtllm, end_id=said[4], stop_words=[[said[4]]]))
        never = results(executor, request(trtllm, end_id=-1))
    assert tokens(ended) == said[:4] and ended[-1].finish_reasons == [trtllm.FinishReason.END_ID]
    assert ended[-1].output_token_ids == [[]]
    assert tokens(stopped) == said[:4] and stopped[-1].finish_reasons == [trtllm.FinishReason.STOP_WORDS]
    assert tokens(both) == said[:5] and both[-1].finish_reasons == [trtllm.FinishReason.STOP_WORDS]
    assert tokens(never) == said


def test_lengths_are_cut_without_a_word(trtllm: Any, plain: Path, lookahead: Path) -> None:
    with opened(trtllm, plain) as executor:
        found = results(executor, request(trtllm, max_tokens=1000))
    assert len(tokens(found)) == LENGTH - len(PROMPT) and found[-1].finish_reasons == [trtllm.FinishReason.LENGTH]
    with opened(trtllm, lookahead, with_windows(trtllm)) as executor:
        assert len(tokens(results(executor, request(trtllm, max_tokens=1000)))) == LENGTH - len(PROMPT)


def test_requests_are_checked_later_and_alone(trtllm: Any, plain: Path) -> None:
    wanted = [trtllm.AdditionalModelOutput("TopLogits", True)]
    output = trtllm.OutputConfig(additional_model_outputs=wanted)
    penalty = trtllm.SamplingConfig(presence_penalty=1.0, top_p=1.0)
    with opened(trtllm, plain) as executor:
        good = executor.enqueue_request(request(trtllm))
        for asked, text in (
            (request(trtllm, [5] * LENGTH), f"Prompt length ({LENGTH}) exceeds maximum input length ({LENGTH - 1})."),
            (request(trtllm, end_id=267), "EndId (267) is not within acceptable range [-1, 267)."),
            (request(trtllm, output_config=trtllm.OutputConfig(return_context_logits=True)), "gather_context_logits"),
            (request(trtllm, output_config=trtllm.OutputConfig(return_generation_logits=True)), "in ExecutorConfig"),
            (request(trtllm, output_config=output), "Additional output tensor not found: TopLogits"),
            (request(trtllm, sampling_config=penalty), "counts tokens of the prompt for one token alone"),
        ):
            said = error(executor, asked)
            assert said.startswith(FETCH) and text in said and "\n" in said
        assert len(responses(executor, good)) == 12
    with pytest.raises(RuntimeError, match="File does not exist"):
        trtllm.Executor(plain / "none", trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig())


def by_kernel(llama: Path, text: list[int], bias: torch.Tensor, config: Any, ignored: int) -> int:
    """The best token as penaltyKernels.cu edits logits: bias, temperature, repetition, then presence and frequency."""
    logits = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)(torch.tensor([text])).logits[0, -1]
    logits = (logits + bias) / config.temperature
    for token in set(text):
        value, count = logits[token], text[ignored:].count(token)
        value = value / config.repetition_penalty if value > 0 else value * config.repetition_penalty
        logits[token] = value - (config.presence_penalty if count else 0.0) - config.frequency_penalty * count
    return int(logits.argmax())


PENALTIES = (
    {"temperature": 4.0, "repetition_penalty": 0.6, "presence_penalty": 2.0, "frequency_penalty": 1.0},
    {"temperature": 0.25, "repetition_penalty": 1.6, "presence_penalty": 6.0, "frequency_penalty": -1.0},
)
"""With a bias of 12, any other order says something else."""


@torch.inference_mode()
@pytest.mark.parametrize("given", PENALTIES)
def test_penalties_come_in_the_kernels_order(trtllm: Any, llama: Path, plain: Path, given: dict[str, float]) -> None:
    """Of the text so far, token by token, as our rounds ask; and of one text."""
    bias = torch.zeros(267)
    bias[PROMPT[0]] = 12.0
    with opened(trtllm, plain) as executor:
        text, ignored = list(PROMPT), len(PROMPT)
        for _ in range(12):
            config = trtllm.SamplingConfig(top_k=1, prompt_ignore_length=ignored, **given)
            asked = request(trtllm, text, 1, sampling_config=config, embedding_bias=bias)
            expected = by_kernel(llama, text, bias, config, ignored)
            text += (found := tokens(results(executor, asked)))
            assert found == [expected]
        whole = request(trtllm, PROMPT, 12, sampling_config=config, embedding_bias=bias)
        assert tokens(results(executor, whole)) == text[len(PROMPT) :]


def test_an_id_is_over_after_its_last_response(trtllm: Any, plain: Path) -> None:
    with opened(trtllm, plain) as executor:
        request_id = executor.enqueue_request(request(trtllm, client_id=7))
        assert {response.client_id for response in responses(executor, request_id)} == {7}
        (again,) = executor.await_responses(request_id, SECOND)
        assert again.error_msg.startswith(f"ReqId {request_id} has already been processed and was terminated.")
        assert executor.await_responses(timedelta(0)) == []
        assert executor.await_responses([request_id, 99], timedelta(0))[1] == []
        assert executor.get_num_responses_ready() == 0
        with pytest.raises(TypeError):
            executor.await_responses(0.1)
        with pytest.raises(TypeError):
            executor.cancel_request()
        executor.cancel_request(request_id)


def test_a_full_queue_is_told_at_once(trtllm: Any, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.05")
    with opened(trtllm, plain, max_batch_size=1, max_queue_size=2) as executor:
        first = executor.enqueue_request(request(trtllm))
        assert executor.await_responses(first, LONG)
        executor.enqueue_requests([request(trtllm), request(trtllm)])
        with pytest.raises(RuntimeError, match="Maximum queue size of 2 has been reached, please try again later"):
            executor.enqueue_request(request(trtllm))
        assert executor.can_enqueue_requests()


def test_cancelled_and_late_requests_end_empty(trtllm: Any, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    with opened(trtllm, plain, max_batch_size=1) as executor:
        first, second = executor.enqueue_requests([request(trtllm, max_tokens=100) for _ in range(2)])
        assert executor.await_responses(first, LONG)
        for request_id in (second, first):  # the second waits, and is cancelled once it runs
            executor.cancel_request(request_id)
        for request_id in (first, second):
            last = responses(executor, request_id)[-1].result
            assert (last.output_token_ids, last.avg_decoded_tokens_per_iter) == ([[]], 0.0)
            assert last.finish_reasons == [trtllm.FinishReason.CANCELLED]
        late = results(executor, request(trtllm, max_tokens=100, allotted_time_ms=timedelta(seconds=0.1)))
        assert late[-1].output_token_ids == [[]] and late[-1].finish_reasons == [trtllm.FinishReason.TIMED_OUT]


def test_statistics_are_drained_and_the_oldest_are_lost(trtllm: Any, plain: Path) -> None:
    with opened(trtllm, plain, iter_stats_max_iterations=5) as executor:
        results(executor, request(trtllm))
        found = executor.get_latest_iteration_stats()
        assert [stats.iter for stats in found] == [8, 9, 10, 11, 12]
        assert executor.get_latest_iteration_stats() == []
    last = found[-1]
    assert (last.num_active_requests, last.num_completed_requests, last.specdec_stats) == (1, 1, None)
    assert last.inflight_batching_stats.num_gen_requests == 1 and last.kv_cache_stats.tokens_per_block == 32
    with opened(trtllm, plain, iter_stats_max_iterations=0) as executor:
        results(executor, request(trtllm))
        assert executor.get_latest_iteration_stats() == []


def test_sampling_follows_the_seed_and_is_greedy_without_truncation(trtllm: Any, plain: Path) -> None:
    def said(executor: Any, **sampling: Any) -> list[int]:
        return tokens(results(executor, request(trtllm, sampling_config=trtllm.SamplingConfig(**sampling))))

    with opened(trtllm, plain) as executor:
        greedy = said(executor)
        assert said(executor, temperature=3.0, seed=5) == greedy  # neither top_k nor top_p
        drawn = said(executor, temperature=3.0, seed=5, top_p=1.0)
        assert drawn == said(executor, temperature=3.0, seed=5, top_p=1.0) != greedy
        assert drawn != said(executor, temperature=3.0, seed=6, top_p=1.0)
        assert said(executor, temperature=3.0, top_k=50) == said(executor, temperature=3.0, top_k=50, seed=0)
        assert said(executor, temperature=3.0, top_k=1, seed=5) == greedy


def test_several_outputs_end_together(trtllm: Any, plain: Path) -> None:
    sampling = trtllm.SamplingConfig(temperature=3.0, top_p=1.0, num_return_sequences=2)
    with opened(trtllm, plain) as executor:
        found = results(executor, request(trtllm, sampling_config=sampling, streaming=False))
        single = results(executor, request(trtllm, sampling_config=trtllm.SamplingConfig(top_p=1.0, temperature=3.0)))
    assert [result.is_final for result in found] == [False, True]
    first, second = sorted(found, key=lambda result: result.sequence_index)
    assert first.is_sequence_final and tokens([first]) == tokens(single) != tokens([second])


def test_log_probabilities_are_the_whole_list_each_time(trtllm: Any, plain: Path) -> None:
    output = trtllm.OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    with opened(trtllm, plain) as executor:
        found = results(executor, request(trtllm, output_config=output))
    assert [len(result.log_probs[0]) for result in found] == list(range(1, 13))
    assert found[-1].cum_log_probs[0] == pytest.approx(sum(found[-1].log_probs[0])) and found[-1].log_probs[0][0] < 0


def test_additional_outputs_have_a_row_for_each_token(trtllm: Any, with_rows: Path, llama: Path) -> None:
    """The rows of those that the cache hid are of other tokens, and their number is told in blocks."""
    wanted = [trtllm.AdditionalModelOutput("TopLogits", True)]
    output = trtllm.OutputConfig(
        exclude_input_from_output=True, additional_model_outputs=wanted, return_perf_metrics=True
    )
    prompt = [*range(10, 80)]
    whole_blocks = trtllm.KvCacheConfig(enable_partial_reuse=False)
    with opened(trtllm, with_rows, kv_cache_config=whole_blocks, additional_model_outputs=wanted) as executor:
        found = [
            results(executor, request(trtllm, given, 3, streaming=False, output_config=output, cache_salt_id=salt))[0]
            for given, salt in ((prompt, 1), ([*prompt[:64], 5], 1), (prompt[:64], 1), (prompt, 2))
        ]
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *found[0].output_token_ids[0]]])).logits[0, :, :260]
    outputs = {output.name: output.output for output in found[0].additional_outputs}
    best, ids = logits.topk(64)
    context, generation = outputs["context_TopLogits"], outputs["generation_TopLogits"]
    expected = torch.cat([best, ids.float(), logits.logsumexp(-1, keepdim=True)], 1)
    assert context.shape == (70, 129) and generation.shape == (1, 3, 129) and context.dtype is torch.float32
    torch.testing.assert_close(context, expected[:70])
    assert generation[0, :, 64].tolist() == found[0].output_token_ids[0]
    assert torch.equal(generation[0, 0], context[-1])
    contexts = [result.additional_outputs[0].output for result in found]
    assert [len(rows) for rows in contexts] == [70, 65, 64, 70]
    reused = [result.request_perf_metrics.kv_cache_metrics.num_reused_blocks for result in found]
    assert reused == [0, 2, 1, 0]  # a prompt's last token is always computed, and other salts share nothing
    torch.testing.assert_close(contexts[2][32:], expected[32:64])
    assert not any(torch.allclose(row, right) for row, right in zip(contexts[2][:32], expected, strict=False))


def test_parts_of_blocks_count_as_whole_ones(trtllm: Any, plain: Path) -> None:
    output = trtllm.OutputConfig(return_perf_metrics=True)
    prompts = ([7] * 40, [7] * 40, [7] * 20, [8] * 20)

    def reused(**more: Any) -> list[int]:
        with opened(trtllm, plain, kv_cache_config=trtllm.KvCacheConfig(**more)) as executor:
            found = [results(executor, request(trtllm, item, 1, output_config=output))[-1] for item in prompts]
        return [result.request_perf_metrics.kv_cache_metrics.num_reused_blocks for result in found]

    assert reused() == [0, 2, 1, 0]
    assert reused(enable_partial_reuse=False) == [0, 1, 0, 0]
    assert reused(enable_block_reuse=False) == [0, 0, 0, 0]


def test_outputs_that_the_network_does_not_have_are_refused(trtllm: Any, plain: Path) -> None:
    wanted = [trtllm.AdditionalModelOutput("TopLogits", True)]
    output = trtllm.OutputConfig(additional_model_outputs=wanted)
    with opened(trtllm, plain, additional_model_outputs=wanted) as executor:
        told = executor.await_responses(executor.enqueue_request(request(trtllm, output_config=output)), LONG)
    assert "Additional output tensor not found: TopLogits" in told[0].error_msg


KILLERS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "beams": (lambda t: {"sampling_config": t.SamplingConfig(2)}, "Can't use speculative decoding with beam search."),
    "logits": (lambda t: {"output_config": t.OutputConfig(return_generation_logits=True)}, "external draft tokens"),
    "additional outputs": (
        lambda t: {"output_config": t.OutputConfig(additional_model_outputs=[t.AdditionalModelOutput("TopLogits")])},
        "output tensor final index mismatch",
    ),
    "larger windows": (lambda t: {"lookahead_config": t.LookaheadDecodingConfig(5, 3, 4)}, "exceeds maxTokensPerStep"),
    "another bias": (lambda t: {"embedding_bias": torch.zeros(267, dtype=torch.float16)}, "same as model logits type"),
    "no room": (lambda t: {"prompt": [5] * (LENGTH + 14)}, "must be less than max sequence length"),
}


@pytest.mark.parametrize("what", KILLERS)
def test_some_requests_end_all_that_are_active(
    trtllm: Any, lookahead: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_PASS_SECONDS", "0.02")
    make, text = KILLERS[what]
    declared = [trtllm.AdditionalModelOutput("TopLogits")]
    config = with_windows(trtllm, gather_generation_logits=True, additional_model_outputs=declared, max_num_tokens=512)
    with opened(trtllm, lookahead, config) as executor:
        innocent = executor.enqueue_request(request(trtllm, max_tokens=60))
        assert executor.await_responses(innocent, LONG)
        killer = executor.enqueue_request(request(trtllm, **make(trtllm)))
        for request_id in (innocent, killer):
            said = responses(executor, request_id)[-1].error_msg
            assert said.startswith(FORWARD) and text in said
        assert len(tokens(results(executor, request(trtllm)))) == 12  # later requests are well


def test_settings_that_are_ignored(trtllm: Any, lookahead: Path) -> None:
    with opened(trtllm, lookahead, with_windows(trtllm)) as executor:
        expected = tokens(results(executor, request(trtllm)))
        ignored = trtllm.SamplingConfig(temperature=5.0, top_k=50, top_p=0.9, seed=3, repetition_penalty=2.0, min_p=0.5)
        assert tokens(results(executor, request(trtllm, sampling_config=ignored, bad_words=[expected[:1]]))) == expected
        bias = torch.zeros(267)
        bias[33] = 1e4
        assert tokens(results(executor, request(trtllm, embedding_bias=bias))) == [33] * 12  # this one is honoured


def test_lookahead_needs_its_windows(trtllm: Any, lookahead: Path) -> None:
    with opened(trtllm, lookahead) as executor:
        said = error(executor, request(trtllm))
        assert said.startswith(FORWARD) and "Lookahead decoding config must be provided" in said
    with pytest.raises(RuntimeError, match="max_draft_len"):
        windows = trtllm.DecodingConfig(trtllm.DecodingMode.Lookahead(), trtllm.LookaheadDecodingConfig(5, 3, 4))
        trtllm.Executor(lookahead, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig(decoding_config=windows))


WRONG_CONFIGURATIONS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "static": (lambda t: {"batching_type": t.BatchingType.STATIC}, "Static batching type is deprecated"),
    "batch": (lambda t: {"max_batch_size": 5}, r"max batch size \(5\) must not exceed engine max batch size \(4\)"),
    "beams": (lambda t: {"max_beam_width": 2}, "max beam width"),
    "chunks": (lambda t: {"enable_chunked_context": True}, "Chunked context requires context FMHA"),
    "orchestrator": (
        lambda t: {"parallel_config": t.ParallelConfig(communication_mode=t.CommunicationMode.ORCHESTRATOR)},
        "OrchestratorConfig must be set",
    ),
    "devices": (lambda t: {"parallel_config": t.ParallelConfig(device_ids=[0, 1])}, "device_ids has 2 entries"),
}


@pytest.mark.parametrize("what", WRONG_CONFIGURATIONS)
def test_the_constructor_refuses(trtllm: Any, llama: Path, tmp_path: Path, what: str) -> None:
    from tensorrt_llm.plugin.plugin import PluginConfig

    path = compile_engine(llama, tmp_path / "engine", plugin_config=PluginConfig(use_paged_context_fmha=False))
    make, text = WRONG_CONFIGURATIONS[what]
    with pytest.raises(RuntimeError, match=text):
        trtllm.Executor(path, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig(**make(trtllm)))


def test_after_shutdown_nothing_may_be_called(trtllm: Any, plain: Path) -> None:
    executor = trtllm.Executor(plain, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig())
    released: list[list[Any]] = []
    asked, check = threading.Event(), executor._mailbox._check
    executor._mailbox._check = lambda: (check(), asked.set())  # under the lock that waiting gives back
    waiting = threading.Thread(target=lambda: released.append(executor.await_responses()))
    waiting.start()
    asked.wait()
    executor.shutdown()
    waiting.join()
    assert released == [[]]
    executor.shutdown()
    with pytest.raises(RuntimeError, match="Shutdown called, cannot enqueue requests"):
        executor.enqueue_request(request(trtllm))
    for call in (
        lambda: executor.await_responses(SECOND),
        lambda: executor.cancel_request(1),
        executor.get_latest_iteration_stats,
        executor.get_num_responses_ready,
    ):
        with pytest.raises(RuntimeError, match="Shutdown called"):
            call()


def test_a_freed_executor_is_gone(trtllm: Any, plain: Path) -> None:
    with trtllm.Executor(plain, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig()) as executor:
        results(executor, request(trtllm))
    with pytest.raises(RuntimeError, match="freed"):
        executor.shutdown()


def test_planted_faults(trtllm: Any, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_ERROR_EVERY", "2")
    monkeypatch.setenv("TRTLLM_DOUBLE_FORWARD_ERROR_AT", "15")
    with opened(trtllm, plain) as executor:
        results(executor, request(trtllm))
        assert error(executor, request(trtllm)).startswith(FETCH)
        assert "CUDA error" in error(executor, request(trtllm))  # twelve passes were the first request's
    monkeypatch.setenv("TRTLLM_DOUBLE_OOM", "1")
    with pytest.raises(RuntimeError, match="CUDA runtime error.*out of memory"):
        trtllm.Executor(plain, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig())


CHILD = """
import sys
from datetime import timedelta
from pathlib import Path
from tensorrt_llm.bindings import executor as t
executor = t.Executor(Path(sys.argv[1]), t.ModelType.DECODER_ONLY, t.ExecutorConfig())
asked = executor.enqueue_request(t.Request([1, 2, 3], 8, streaming=True))
count = 0
while found := executor.await_responses(asked, timedelta(seconds=float(sys.argv[2]))):
    count += len(found)
    print(count, flush=True)
import os
os._exit(3)
"""


@pytest.mark.parametrize(("fault", "code", "seconds"), [("HANG_AT", 3, 2), ("ABORT_AT", -6, 60)])
def test_passes_that_never_end(trtllm: Any, plain: Path, tmp_path: Path, fault: str, code: int, seconds: float) -> None:
    """In a process of its own, away from the tests."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(plain), str(seconds)],
        cwd=tmp_path,
        env={**os.environ, f"TRTLLM_DOUBLE_{fault}": "4"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert fault != "HANG_AT" or done.stdout.endswith("3\n")  # an abort may come before anything is read
