"""A target that tells its best logits: the model class, what the network becomes, and what that takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from builders.build import main
from builders.tensorrt_llm.compiled import Compiled
from builders.tensorrt_llm.fitting import check_fits, check_kernels
from builders.tensorrt_llm.top_logits import TopLogits
from plugins import aot, defs, ptx
from plugins.sampling_specs import top_logits
from tests.fakes.installed import need_plugins, tensorrt_llm_double
from tests.models import tiny_llama
from tests.nvinfer import tensorrt_without_libraries
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.probe import Gpu
from trtspec.manifest import read

WIDTH, VOCABULARY = 267, 260


@pytest.fixture(scope="module")
def double() -> Iterator[ModuleType]:
    need_plugins()
    with tensorrt_llm_double() as package:
        yield package


@pytest.fixture
def tensorrt(double: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """Each test registers the plugins, which can be done once."""
    with tensorrt_without_libraries(tmp_path) as module:
        yield module


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


def model(llama: Path, told: Callable[..., None] = lambda spec, compiled: None, architecture: int = 90) -> Any:
    from tensorrt_llm.models import LLaMAForCausalLM

    from builders.tensorrt_llm.tapped import tapped

    kind = tapped(LLaMAForCausalLM, TopLogits(), vocabulary=VOCABULARY, architecture=architecture, told=told)
    return kind.from_hugging_face(str(llama), dtype="bfloat16")


def facts(llama: Path, folder: Path, made: Any) -> Any:
    """The network's outputs beside the logits, as an engine of the double has them."""
    from tensorrt_llm.builder import BuildConfig, build

    sizes = {"max_seq_len": 64, "max_batch_size": 4, "opt_batch_size": 4, "max_num_tokens": 512}
    build(made, BuildConfig(**sizes, output_timing_cache=str(folder / "timings"))).save(str(folder / "engine"))
    return json.loads((folder / "engine" / "rank0.engine").read_text())


def test_the_model_stays_its_own_and_its_network_tells_more(tensorrt: Any, llama: Path, tmp_path: Path) -> None:
    """A row of every token, from the head over all hidden states, cut to the ids that may be emitted."""
    from tensorrt_llm.models import LLaMAForCausalLM

    compiled = {}
    made = model(llama, lambda spec, item: compiled.update({spec.name: item}))
    assert isinstance(made, LLaMAForCausalLM) and type(made).__name__ == "LLaMAForCausalLM"
    found = facts(llama, tmp_path, made)
    numbers = {"vocabulary": VOCABULARY, "architecture": 90}
    plugins = [{"name": f"trtspec::TopLogits{part}", "numbers": numbers} for part in ("Parts", "Merge")]
    assert found["outputs"] == {"TopLogits": {"dtype": "float32", "columns": 129, "plugins": plugins}}
    assert found["model_class"] == "LLaMAForCausalLM"
    assert [*compiled] == ["top_logits_parts", "top_logits_merge"]
    assert {item.target for item in compiled.values()} == {"sm_90"}
    for spec in top_logits(64):
        entry = ptx.read_entry(compiled[spec.name].ptx)
        assert len(entry.bits) == len(spec.arguments)


def test_the_checkpoint_is_that_of_the_model(tensorrt: Any, llama: Path, tmp_path: Path) -> None:
    """What a class adds to the network adds no weight."""
    from tensorrt_llm.models import LLaMAForCausalLM

    made, plain = model(llama), LLaMAForCausalLM.from_hugging_face(str(llama), dtype="bfloat16")
    assert made._hashes == plain._hashes
    made.save_checkpoint(str(tmp_path))
    assert isinstance(type(made).from_checkpoint(str(tmp_path)), type(made))


def test_another_model_of_the_process_tells_nothing(tensorrt: Any, llama: Path, tmp_path: Path) -> None:
    from tensorrt_llm.models import LLaMAForCausalLM

    model(llama)
    plain = LLaMAForCausalLM.from_hugging_face(str(llama), dtype="bfloat16")
    assert facts(llama, tmp_path, plain)["outputs"] == {}


def _of_sampled_rows(self: Any, **named: Any) -> None:
    type(self).__base__.forward(self, **named)[1].mark_output("Other", "float32")


def _unmarked(self: Any, **named: Any) -> None:
    pass


def _twice(self: Any, **named: Any) -> None:
    type(self).__base__.forward(self, **named)[0].mark_output("logits", "float32")


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        (_of_sampled_rows, "a row for each token"),
        (_unmarked, "does not mark logits"),
        (_twice, "'logits' is marked already"),
    ],
)
def test_the_double_refuses_networks_that_the_runtime_cannot_use(
    double: ModuleType, llama: Path, tmp_path: Path, forward: Callable[..., None], text: str
) -> None:
    from tensorrt_llm.models import LLaMAForCausalLM

    kind: Any = type("LLaMAForCausalLM", (LLaMAForCausalLM,), {"forward": forward})
    with pytest.raises(AssertionError, match=text):
        facts(llama, tmp_path, kind.from_hugging_face(str(llama), dtype="bfloat16"))


@pytest.mark.parametrize(
    ("dtype", "later", "kept"), [("float32", 0, True), ("float32", 1, False), ("float16", 1, True)]
)
def test_an_output_loses_its_name_to_what_is_wrapped_later(
    tensorrt: Any, llama: Path, tmp_path: Path, dtype: str, later: int, kept: bool
) -> None:
    """Of the same layer. A cast to the output's type is another layer, whose names stay."""
    from tensorrt_llm._common import default_trtnet
    from tensorrt_llm.functional import _create_tensor
    from tensorrt_llm.models import LLaMAForCausalLM

    parts, _ = top_logits(64)
    defs.register_plugin(parts)

    def forward(self: Any, **named: Any) -> None:
        logits = self.lm_head(LLaMAForCausalLM.forward(self, **named)[-1])
        layer = defs.add_layer(default_trtnet(), parts, [logits.trt_tensor], architecture=90, vocabulary=VOCABULARY)
        outputs = [_create_tensor(layer.get_output(index), layer) for index in range(3 - later)]
        outputs[1].mark_output("Best", dtype)
        for index in range(3 - later, 3):
            _create_tensor(layer.get_output(index), layer)

    kind: Any = type("LLaMAForCausalLM", (LLaMAForCausalLM,), {"forward": forward})
    outputs = facts(llama, tmp_path, kind.from_hugging_face(str(llama), dtype="bfloat16"))["outputs"]
    ((name, found),) = outputs.items()
    assert found["dtype"] == dtype
    assert name == "Best" if kept else name.endswith("_output_1")


def test_a_build_leaves_the_kernels_beside_the_engine(double: ModuleType, llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "engine"
    argv = ["--backend", "tensorrt_llm", "--method", "ngram", "--target", str(llama), "--output", str(output)]
    argv += ["--tp", "2", "--timing-cache", str(tmp_path / "timings"), "--max-seq-len", "64", "--max-batch-size", "4"]
    assert main(argv) == 0
    artifacts = read(output).artifacts
    for rank in range(2):
        folder = output / "target" / "kernels" / f"rank{rank}"
        table = json.loads((folder / "kernels.json").read_text())
        assert [*table] == ["top_logits_parts", "top_logits_merge"]
        for name, item in table.items():
            text = (folder / f"{name}.ptx").read_text()
            assert f".entry {item['entry']}(" in text and item["target"] == "sm_80" and "ptx" not in item
            assert f"target/kernels/rank{rank}/{name}.ptx" in artifacts


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 80), ((8, 7), 86), ((8, 9), 89), ((9, 0), 90), ((10, 3), 100), ((12, 1), 120)]
)
def test_kernels_are_for_the_newest_architecture_that_the_gpu_runs(capability: Any, expected: int) -> None:
    assert aot.nearest_architecture(*capability) == expected


def planned(monkeypatch: pytest.MonkeyPatch, llama: Path, output: Path, method: str, tokens: int = 8192) -> Compiled:
    """The builder's plan, where it looks at what compiles kernels here."""
    found: list[Compiled] = []

    def stop(compiled: Compiled, gpus: Any) -> None:
        found.append(compiled)
        raise ConfigError("as far as it matters")

    monkeypatch.setattr("builders.tensorrt_llm.command.check_kernels", stop)
    argv = ["--backend", "tensorrt_llm", "--target", str(llama), "--max-seq-len", "256", "--max-batch-size", "64"]
    assert main([*argv, "--output", str(output), "--max-num-tokens", str(tokens), "--method", method]) == 2
    return found[0]


@pytest.mark.parametrize(
    ("capability", "triton", "text"),
    [("7.5", "3.5.1", "compute capability is 7.5; kernels need 8.0"), ("9.0", "3.2.0", "Triton 3.2.0 is installed")],
)
def test_what_kernels_cannot_be_compiled_for_is_refused_before_the_model_is_converted(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capability: str, triton: str, text: str
) -> None:
    """Engines whose network has no plugin of ours do not ask."""
    gpus = [Gpu("one", "9.0", 16384, 16384, "580"), Gpu("another", capability, 16384, 16384, "580")]
    plans = [planned(monkeypatch, llama, tmp_path / "engine", method) for method in ("ngram", "none")]
    monkeypatch.setattr("importlib.metadata.version", lambda name: triton)
    with pytest.raises(ConfigError, match=text) as told:
        check_kernels(plans[0], gpus)
    assert '"acceptance": "engine"' in str(told.value) and "--backend embedded" in str(told.value)
    check_kernels(plans[1], gpus)


def test_kernels_are_for_all_gpus_that_are_known(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = planned(monkeypatch, llama, tmp_path / "engine", "ngram")
    for gpus in ([], [Gpu("NVIDIA H200", "9.0", 1, 1, "580"), Gpu("NVIDIA GB10", "12.1", 0, 0, "580")]):
        check_kernels(compiled, gpus)


def test_the_logits_of_all_tokens_need_room(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside weights and cache; a plain engine of the same sizes has enough."""
    gpu = Gpu("NVIDIA L4", "8.9", 24, 24, "580")
    plans = [planned(monkeypatch, llama, tmp_path / "engine", method, 20000) for method in ("none", "ngram")]
    plain, told = (check_fits(plan, [gpu]) for plan in plans)
    assert plain is None
    assert told is not None and "25 MiB for the logits of 16384 tokens" in told
    assert "a smaller --max-batch-size, --max-num-tokens or --max-seq-len" in told
