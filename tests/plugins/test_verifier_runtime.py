"""The runtime over a double of TensorRT: native engines in numbers, and what it refuses before an engine could."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from builders import verifier
from plugins import runtime, verifier_folder
from plugins.runtime import Verifier
from tests.fakes.nvinfer_engine import Config, Context, Engine, Runtime, engines, no_gpu
from tests.fakes.nvinfer_network import Network
from tests.nvinfer import tensorrt_without_libraries
from tests.plugins.greedy_rows import GreedyRows, chain_that_is_liked, greedy_rows, same
from trtspec.errors import EngineFolderError, KernelError, MissingDependency

VOCABULARY = 5
FLAGS = ["--kind", "native", "--vocabulary", "5", "--width", "5:6:8", "--rows", "1:2:4", "--nodes", "1:3:9"]


@pytest.fixture(scope="module")
def trt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with (
        tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as module,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(runtime, "current_stream", lambda device: 5)
        with engines(module):
            yield module


@pytest.fixture(scope="module")
def folder(trt: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "verifier"
    assert verifier.main([*FLAGS, "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def opened(folder: Path) -> Verifier:
    return runtime.open_verifier(folder, "cpu")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=greedy_rows(VOCABULARY, most_nodes=9))
def test_layers_of_tensorrt_in_numbers(opened: Verifier, rows: GreedyRows) -> None:
    same(opened.run("trees", **rows._asdict()), rows.expected(VOCABULARY))


def test_bfloat16_and_a_width_that_never_changes(trt: Any, tmp_path: Path) -> None:
    flags = ["--kind", "native", "--vocabulary", "40", "--logits", "bfloat16", "--rows", "2", "--nodes", "3"]
    assert verifier.main([*flags, "--output", str(tmp_path / "verifier")]) == 0
    logits = torch.randn(2, 4, 40, generator=torch.Generator().manual_seed(2)).bfloat16()
    one = chain_that_is_liked(3, 40)
    rows = GreedyRows(logits, *(torch.cat([column, column]) for column in one[1:]))
    same(runtime.open_verifier(tmp_path / "verifier", "cpu").run("trees", **rows._asdict()), rows.expected(40))


def given_rows(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two chains of three nodes."""
    one = chain_that_is_liked(3, 6)
    return {**{name: torch.cat([value, value]) for name, value in one._asdict().items()}, **changed}


REFUSED = [
    (
        {"tokens": torch.zeros(5, 3).int()},
        r"tokens is \[5, 3\], and the engine takes \[1 to 4, 1 to 9\], so not 5 rows; split or pad it, or build "
        "an engine with another --rows",
    ),
    ({"tokens": torch.zeros(2, 10).int()}, r"tokens is \[2, 10\].* so not 10 nodes; .* another --nodes"),
    ({"logits": torch.zeros(2, 4, 9)}, r"logits is \[2, 4, 9\].*, 2 to 10, 5 to 8\], so not 9 width; .*--width"),
    ({"logits": torch.zeros(2, 1, 6)}, r"so not 1 places; .*--nodes"),
    ({"counts": torch.zeros(3).int()}, r"counts is \[3\] and logits \[2, 4, 6\]; counts needs 2 rows, and has 3"),
    (
        {"parents": torch.zeros(2, 2).int()},
        r"parents is \[2, 2\] and tokens \[2, 3\]; parents needs 3 nodes, and has 2",
    ),
    (
        {"logits": torch.zeros(2, 3, 6)},
        r"logits is \[2, 3, 6\] and tokens \[2, 3\]; logits needs 4 places, one more than nodes .*, and has 3",
    ),
    ({"counts": torch.zeros(2)}, "counts is float32, and the engine takes int32; cast it"),
    ({"logits": torch.zeros(2, 4, 6).half()}, "logits is float16, and the engine takes float32"),
    ({"counts": torch.zeros(2, 1).int()}, r"counts is \[2, 1\], and the engine takes \[rows\]; reshape it"),
    ({"tokens": torch.zeros(3, 2).int().T}, r"tokens is strided, .* give tokens.contiguous\(\)"),
    (
        {"counts": torch.zeros(4).int()[2:]},
        r"counts begins 8 bytes after a multiple of 16, and engines on cpu .*; give counts.clone\(\)",
    ),
    ({"tokens": torch.zeros(2, 3, device="meta").int()}, "tokens is on meta, and the engine on cpu; move it there"),
    ({"more": torch.zeros(2)}, "trees.engine takes logits, tokens, parents, counts; given are logits, .*, more"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_what_an_engine_cannot_see_is_refused(opened: Verifier, changed: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        opened.run("trees", **given_rows(**changed))


def test_views_that_are_aligned_are_taken(opened: Verifier) -> None:
    rows = given_rows()
    moved = {name: torch.cat([torch.zeros(4, *value.shape[1:]).to(value), value])[4:] for name, value in rows.items()}
    assert {value.data_ptr() % 32 for value in moved.values()} == {0, 16}
    same(opened.run("trees", **moved), GreedyRows(**rows).expected(VOCABULARY))


@pytest.mark.parametrize(("address", "beyond"), [(4096, 0), (4352, 0), (4096 + 128, 128), (4096 + 16, 16)])
def test_addresses_on_a_gpu_are_multiples_of_what_tensorrt_documents(folder: Path, address: int, beyond: int) -> None:
    record, gpu = verifier_folder.read(folder), torch.device("cuda", 0)
    arrays = record.engines["trees"].inputs
    given = {name: on_gpu(value, 4096, gpu) for name, value in given_rows().items()}
    given["logits"] = on_gpu(given_rows()["logits"], address, gpu)
    inputs = runtime.Inputs("trees.engine", arrays, record.dimensions, gpu)
    text = f"logits begins {beyond} bytes after a multiple of 256, and engines on cuda:0"
    with pytest.raises(KernelError, match=text) if beyond else contextlib.nullcontext():
        inputs.check(given)


def on_gpu(tensor: torch.Tensor, address: int, device: torch.device) -> Any:
    """What is asked of a tensor before an engine runs."""
    told = {name: getattr(tensor, name) for name in ("shape", "dtype", "ndim", "is_contiguous")}
    return SimpleNamespace(**told, device=device, data_ptr=lambda: address)


def test_the_ends_of_each_range_are_taken(opened: Verifier) -> None:
    for nodes, width, count in ((1, 5, 1), (9, 8, 4)):
        one = chain_that_is_liked(nodes, width)
        rows = GreedyRows(*(torch.cat([column] * count) for column in one))
        same(opened.run("trees", **rows._asdict()), rows.expected(VOCABULARY))


def test_an_input_that_is_missing_and_an_engine_that_is(opened: Verifier) -> None:
    rows = given_rows()
    del rows["counts"]
    with pytest.raises(KernelError, match="given are logits, tokens, parents"):
        opened.run("trees", **rows)
    with pytest.raises(KernelError, match="there is no engine chains; this folder has trees"):
        opened.run("chains", **rows)


@pytest.mark.parametrize(
    ("where", "name", "answer", "message"),
    [
        (Context, "set_input_shape", False, r"trees.engine: TensorRT refused logits, \[2, 4, 6\]; its log says why"),
        (Context, "set_tensor_address", False, "TensorRT refused logits"),
        (Context, "infer_shapes", ["tokens"], "TensorRT knows no shape of tokens"),
        (Context, "execute_async_v3", False, "TensorRT could not queue it"),
    ],
)
def test_what_tensorrt_refuses_is_never_taken_for_done(
    opened: Verifier, where: type, name: str, answer: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, lambda *arguments: answer)
    with pytest.raises(KernelError, match=message):
        opened.run("trees", **given_rows())


@pytest.mark.parametrize("written", [2.0, math.nan])
def test_an_engine_that_writes_into_its_inputs_is_found(
    opened: Verifier, written: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside values that are no numbers, too."""
    execute = Network.execute

    def spoiling(self: Network, inputs: dict[str, torch.Tensor], shapes_only: bool = False) -> Any:
        found = execute(self, inputs, shapes_only)
        if not shapes_only:
            inputs["logits"][1, 2, 3] = written
        return found

    logits = given_rows()["logits"]
    logits[0, 0, 0] = math.nan
    opened.run("trees", **given_rows(logits=logits))
    monkeypatch.setattr(Network, "execute", spoiling)
    with pytest.raises(AssertionError, match="the network writes into its inputs logits"):
        opened.run("trees", **given_rows(logits=logits))


@pytest.mark.parametrize(
    ("where", "name", "error", "message"),
    [
        (
            Runtime,
            "deserialize_cuda_engine",
            EngineFolderError,
            "cannot load it here; it was built with tensorrt 10.14",
        ),
        (Engine, "create_execution_context", KernelError, "TensorRT made no context"),
    ],
)
def test_engines_that_do_not_open(
    folder: Path, where: type, name: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, lambda *arguments: None)
    with pytest.raises(error, match=message):
        runtime.open_verifier(folder, "cpu")


FAILURE = "CUDA initialization failure with error: 35"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"INTERNAL_ERROR": FAILURE, "WARNING": "more"}, FAILURE),
        ({"ERROR": FAILURE, "INFO": "more"}, FAILURE),
        ({"INFO": "more", "WARNING": FAILURE}, FAILURE),
        ({}, "it did not say why"),
    ],
)
def test_without_a_gpu_the_way_out_is_said(
    trt: Any, folder: Path, tmp_path: Path, said: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version = "tensorrt 10.14.1.48.post1"
    with no_gpu(trt, **said):
        with pytest.raises(KernelError, match=f"{version} made no Runtime: {told}; engines run on a GPU, with its"):
            runtime.open_verifier(folder, "cpu")
        assert verifier.main([*FLAGS, "--output", str(tmp_path / "verifier")]) == 1
    assert f"error: {version} made no Builder: {told}; it needs a GPU and its driver; " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_shows_what_it_is_told(
    trt: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Errors say that its log tells more."""

    def fail(self: Any, *given: Any) -> None:
        self.log.log(trt.ILogger.Severity.ERROR, "too new")
        self.log.log(trt.ILogger.Severity.INFO, "too much")

    monkeypatch.setattr(Runtime, "deserialize_cuda_engine", fail)
    with pytest.raises(EngineFolderError, match="Its log says why"):
        runtime.open_verifier(folder, "cpu")
    said = "".join(capfd.readouterr())
    assert "too new" in said and "too much" not in said


def test_sizes_that_a_builder_refuses(
    trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Config, "add_optimization_profile", lambda *arguments: -1)
    assert verifier.main([*FLAGS, "--output", str(tmp_path / "verifier")]) == 1
    assert (
        "tensorrt 10.14.1.48.post1 refuses the sizes of network trees: rows 1:2:4, nodes 1:3:9"
        in capsys.readouterr().err
    )


def changed_record(folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in ("trees.engine", verifier_folder.NAME):
        (copy / file).write_bytes((folder / file).read_bytes())
    document = json.loads((copy / verifier_folder.NAME).read_text())
    change(document)
    (copy / verifier_folder.NAME).write_text(json.dumps(document))
    return copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(format=2), "has format 2, and this version reads 1; build it again"),
        (lambda document: document.pop("engines"), r"is not what it should be \(KeyError\('engines'\)\)"),
        (lambda document: document.update(colour="red"), "is not what it should be .*colour"),
        (lambda document: document["engines"]["trees"].update(sha256="0"), "is not the file that was built"),
        (lambda document: document["engines"]["trees"].update(file="other"), "other is not the file that was built"),
        (lambda document: document["engines"]["trees"]["inputs"].pop(), "its record says otherwise"),
        (lambda document: document["engines"]["trees"]["outputs"].pop(), "its record says otherwise"),
        (lambda document: document.update(compiler="onnx"), "--compiler onnx, whose files are no engines"),
    ],
)
def test_records_that_do_not_fit(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(EngineFolderError, match=message):
        runtime.open_verifier(changed_record(folder, tmp_path, change), "cpu")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "has no verifier.json"), ("{", "cannot be read"), ("[]", "format")]
)
def test_folders_without_a_record(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / verifier_folder.NAME).write_text(text)
    with pytest.raises(EngineFolderError, match=message):
        runtime.open_verifier(tmp_path, "cpu")


def test_a_record_reads_to_itself(folder: Path, tmp_path: Path) -> None:
    record = verifier_folder.read(folder)
    changed = dataclasses.replace(record, gpu="one", architectures=(80, 90))
    verifier_folder.write(changed, tmp_path)
    assert verifier_folder.read(tmp_path) == changed


@pytest.mark.parametrize("compiler", verifier_folder.MODULES)
def test_a_compiler_that_is_not_there(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in verifier_folder.MODULES[compiler]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency, match=f"{compiler} cannot be imported .*pip install"):
        verifier_folder.import_first(compiler)


def test_an_engine_is_loaded_and_runs_where_its_gpu_is_the_current_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA alone knows which that is; the double is on the CPU's memory all the same."""
    now, seen, gpu, empty = [torch.device("cuda", 0)], [], torch.device("cuda", 1), torch.empty

    @contextlib.contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        now.append(wanted)
        yield
        now.pop()

    def watched(kind: type, name: str) -> None:
        real = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given: seen.append((name, now[-1])) or real(*given))

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch, "empty", lambda *given, device, **named: empty(*given, **named))
    monkeypatch.setattr(runtime.Inputs, "check", lambda *given: None)
    calls = [(Runtime, "deserialize_cuda_engine"), (Engine, "create_execution_context"), (Context, "execute_async_v3")]
    for kind, name in calls:
        watched(kind, name)
    rows = given_rows()
    found = runtime.open_verifier(folder, gpu).run("trees", **rows)
    same(found, GreedyRows(**rows).expected(VOCABULARY))
    assert seen == [(name, gpu) for _, name in calls]
    assert now == [torch.device("cuda", 0)]


def test_the_stream_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        cuda_stream = 1234

    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or Stream())
    fresh = importlib.util.module_from_spec(runtime.__spec__)  # type: ignore[arg-type]
    runtime.__spec__.loader.exec_module(fresh)  # type: ignore[union-attr]
    assert fresh.current_stream(torch.device("cuda", 1)) == 1234
    assert asked == [torch.device("cuda", 1)]
