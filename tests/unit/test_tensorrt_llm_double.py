"""The double of TensorRT-LLM is as strict as its table: names, types, places, access, and ranges of values."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.fakes.installed import tensorrt_llm_double

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def double() -> Iterator[ModuleType]:
    with tensorrt_llm_double() as package:
        yield package


@pytest.fixture(scope="module")
def trtllm(double: ModuleType) -> Any:
    from tensorrt_llm.bindings import executor

    return executor


MODULES = ("builder", "mapping", "models", "quantization", "functional", "_common")


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "scripts/typings/signatures.json").read_text())["symbols"]
    return found


def test_the_stubs_are_those_of_the_table() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/gen-typings", "--check"], check=True)


def test_every_row_has_one_source_and_is_there(double: ModuleType) -> None:
    for name in (*MODULES, "bindings.executor", "llmapi.kv_cache_type"):
        importlib.import_module(f"tensorrt_llm.{name}")
    for row in rows():
        assert isinstance(row["source"], str) and row["source"], row["symbol"]
        found: Any = double
        for name in row["symbol"].split(".")[1:]:
            found = getattr(found, name)


Make = Callable[[Any], object]

WRONG_ARGUMENTS: dict[str, Make] = {
    "an unknown keyword": lambda t: t.ExecutorConfig(max_batchsize=4),
    "an unknown keyword of a request": lambda t: t.Request([1], 2, stream=True),
    "a keyword by its place": lambda t: t.Request([1], 2, True),
    "too many": lambda t: t.AdditionalModelOutput("TopLogits", True, 1),
    "one twice": lambda t: t.AdditionalModelOutput("TopLogits", name="x"),
    "none": lambda t: t.Request(),
    "a text for a number": lambda t: t.SamplingConfig(top_k="1"),
    "a fraction for a number": lambda t: t.Request([1], 2.0),
    "a truth for a number": lambda t: t.SamplingConfig(top_k=True),
    "a number for a truth": lambda t: t.Request([1], 2, streaming=1),
    "a tuple for a list": lambda t: t.Request((1, 2), 2),
    "texts in a list of numbers": lambda t: t.Request(["a"], 2),
    "flat stop words": lambda t: t.Request([1], 2, stop_words=[1, 2]),
    "seconds for a time": lambda t: t.Request([1], 2, allotted_time_ms=100),
    "another class": lambda t: t.Request([1], 2, sampling_config=t.OutputConfig()),
    "a class that cannot be made": lambda t: t.Request([1], 2, lora_config=object()),
    "a seed below 0": lambda t: t.SamplingConfig(seed=-1),
    "a seed of 65 bits": lambda t: t.SamplingConfig(seed=1 << 64),
    "a list for a tensor": lambda t: t.Request([1], 2, embedding_bias=[0.0]),
    "a text for a folder": lambda t: t.Executor("engine", t.ModelType.DECODER_ONLY, t.ExecutorConfig()),
    "a mode made by hand": lambda t: t.DecodingMode(),
    "names of places": lambda t: t.LookaheadDecodingConfig.calculate_speculative_resource_tuple(window=1, ngram=2),
    "one too many of an overload": lambda t: t.Response(1, "text", 2, 3),
    "nothing for a value": lambda t: setattr(t.ExecutorConfig(), "max_batch_size", None),
    "nothing for a value of a request": lambda t: setattr(t.Request([1], 2), "end_id", None),
    "a wrong value": lambda t: setattr(t.Request([1], 2), "end_id", "x"),
}


@pytest.mark.parametrize("what", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(trtllm: Any, what: str) -> None:
    with pytest.raises(TypeError):
        WRONG_ARGUMENTS[what](trtllm)


WRONG_ATTRIBUTES: dict[str, Make] = {
    "one that is no attribute": lambda t: setattr(t.Request([1], 2), "streamin", True),
    "one of the constructor alone": lambda t: setattr(t.Request([1], 2), "priority", 0.5),
    "the constructor's name of another": lambda t: setattr(t.Request([1], 2), "type", t.RequestType(0)),
    "one that is read-only": lambda t: setattr(t.Request([1], 2), "max_tokens", 3),
    "one of a read-only class": lambda t: setattr(t.EagleConfig(), "greedy_sampling", False),
    "reading one that is none": lambda t: t.Result().output_ids,
    "reading one of the constructor alone": lambda t: t.KvCacheConfig().runtime_defaults,
    "a mode that is not exported": lambda t: t.DecodingMode.ExternalDraftTokens(),
}


@pytest.mark.parametrize("what", WRONG_ATTRIBUTES)
def test_wrong_attributes_are_refused(trtllm: Any, what: str) -> None:
    with pytest.raises(AttributeError):
        WRONG_ATTRIBUTES[what](trtllm)


WRONG_VALUES: dict[str, Make] = {
    "no prompt": lambda t: t.Request([], 2),
    "no tokens": lambda t: t.Request([1], 0),
    "top_p 0": lambda t: t.SamplingConfig(top_p=0.0),
    "top_p 1.5": lambda t: t.SamplingConfig(top_p=1.5),
    "a negative temperature": lambda t: t.SamplingConfig(temperature=-0.1),
    "no beam": lambda t: t.SamplingConfig(0),
    "no repetition penalty": lambda t: t.SamplingConfig(repetition_penalty=0.0),
    "a setter": lambda t: setattr(t.SamplingConfig(), "top_p", 0.0),
    "a tree twice": lambda t: t.EagleConfig([[0]], True, None, True, 4),
    "a threshold of 1": lambda t: t.EagleConfig(posterior_threshold=1.0),
    "no window": lambda t: t.LookaheadDecodingConfig(0, 3, 4),
    "a window without n-grams": lambda t: t.LookaheadDecodingConfig(2, 1, 0),
    "no drafts": lambda t: t.ExternalDraftTokensConfig([]),
    "logits of other drafts": lambda t: t.ExternalDraftTokensConfig([1, 2], torch.zeros(3, 8)),
    "choices without a mode": lambda t: t.DecodingConfig(medusa_choices=[[0]]),
    "choices of another mode": lambda t: t.DecodingConfig(t.DecodingMode.Eagle(), medusa_choices=[[0]]),
    "a mode without its settings, later": lambda t: setattr(
        t.DecodingConfig(), "decoding_mode", t.DecodingMode.Medusa()
    ),
}


@pytest.mark.parametrize("what", WRONG_VALUES)
def test_wrong_values_are_failed_checks(trtllm: Any, what: str) -> None:
    with pytest.raises(RuntimeError):
        WRONG_VALUES[what](trtllm)


def test_a_refused_value_is_not_kept(trtllm: Any) -> None:
    sampling = trtllm.SamplingConfig(top_p=0.5)
    with pytest.raises(RuntimeError):
        sampling.top_p = 0.0
    assert sampling.top_p == 0.5


def test_defaults_are_those_of_the_bindings(trtllm: Any) -> None:
    config = trtllm.ExecutorConfig()
    assert (config.enable_chunked_context, config.iter_stats_max_iterations, config.max_queue_size) == (
        False,
        1000,
        None,
    )
    assert config.kv_cache_config.enable_block_reuse is True
    assert trtllm.OutputConfig().exclude_input_from_output is False
    assert trtllm.Request([1], 2).request_type is trtllm.RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION
    assert trtllm.LookaheadDecodingConfig(5, 6, 7).calculate_speculative_resource() == (60, 6, 59, 5)
    assert trtllm.LookaheadDecodingConfig.calculate_speculative_resource_tuple(4, 3, 4) == (16, 3, 15, 2)


def test_each_default_is_an_object_of_its_own(trtllm: Any) -> None:
    first, second = trtllm.Request([1], 2), trtllm.Request([1], 2)
    first.sampling_config.top_k = 4
    assert second.sampling_config.top_k is None


def test_settings_of_a_mode_set_it(trtllm: Any) -> None:
    decoding = trtllm.DecodingConfig()
    decoding.medusa_choices = [[0], [0, 0]]
    assert decoding.decoding_mode.isMedusa() and not decoding.decoding_mode.isEagle()
    assert decoding.decoding_mode.name == "Medusa"


def test_a_response_has_an_error_or_a_result(trtllm: Any) -> None:
    failed = trtllm.Response(3, "what went wrong")
    assert callable(failed.has_error) and failed.has_error() and failed.error_msg == "what went wrong"
    with pytest.raises(RuntimeError, match="what went wrong"):
        _ = failed.result
    good = trtllm.Response(request_id=4, result=trtllm.Result(), client_id=5)
    assert not good.has_error() and good.result.output_token_ids == [] and good.client_id == 5
    with pytest.raises(RuntimeError):
        _ = good.error_msg


def test_statistics_have_other_names_in_json(trtllm: Any) -> None:
    stats = trtllm.IterationStats()
    stats.iter, stats.specdec_stats = 3, trtllm.SpecDecodingStats()
    stats.kv_cache_stats = trtllm.KvCacheStats()
    told = json.loads(stats.to_json_str())
    assert told["iter"] == 3 and told["iterLatencyMS"] == 0.0 and told["specDecodingStats"]["numDraftTokens"] == 0
    assert told["kvCacheStats"]["tokensPerBlock"] == 0 and "inflightBatchingStats" not in told


def test_metrics_hold_times(trtllm: Any) -> None:
    metrics = trtllm.RequestPerfMetrics()
    metrics.timing_metrics.arrival_time = timedelta(seconds=2)
    with pytest.raises(TypeError):
        metrics.timing_metrics.arrival_time = 2.0


def test_the_builders_configurations_take_no_unknown_names(double: ModuleType) -> None:
    from tensorrt_llm.builder import BuildConfig
    from tensorrt_llm.plugin.plugin import PluginConfig

    for make in (lambda: BuildConfig(max_batchsize=4), lambda: PluginConfig(gem_plugin="auto")):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        BuildConfig(speculative_decoding_mode=4)
    with pytest.raises(ValueError, match="auto"):
        PluginConfig(dtype="auto")
    with pytest.raises(ValueError, match="gemm_plugin"):
        PluginConfig(gemm_plugin="int7")
    assert PluginConfig(dtype="bfloat16", gemm_plugin="auto").gemm_plugin == "bfloat16"


def test_mapping_must_multiply(double: ModuleType) -> None:
    from tensorrt_llm.mapping import Mapping

    with pytest.raises(ValueError, match="world_size"):
        Mapping(world_size=4, tp_size=2)
    with pytest.raises(ValueError, match="rank"):
        Mapping(world_size=2, rank=2, tp_size=2)
    with pytest.raises(TypeError):
        Mapping(2, 0, 8, 2)


def test_child_processes_find_it_without_the_tests(double: ModuleType, tmp_path: Path) -> None:
    code = "import tensorrt_llm.builder, tensorrt_llm.bindings.executor as e; print(e.FinishReason.LENGTH.name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "LENGTH\n"


def test_it_is_gone_afterwards() -> None:
    code = (
        "import importlib.util as u, sys\n"
        "from tests.fakes.installed import tensorrt_llm_double\n"
        "with tensorrt_llm_double() as package:\n    assert package.__version__ == '1.2.1'\n"
        "assert u.find_spec('tensorrt_llm') is None and 'tensorrt_llm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={"PATH": "", "PYTHONPATH": str(ROOT)})
