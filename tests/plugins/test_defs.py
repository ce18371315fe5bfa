"""Plugins as TensorRT's own Python layer sees them: what they register, their shapes, types and launches."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plugins import defs, device_tensors, ptx, symbolic
from plugins.contract import LOGITS, Array, KernelSpec
from plugins.specs import KERNELS
from tests import nvinfer
from tests.nvinfer import Announced, Asked, Network, builder_of_expressions, dimensions, tensorrt_without_libraries
from tests.plugins.sample_specs import ROW_PARTS
from trtspec.errors import ConfigError, KernelError, MissingDependency

PACKAGE = "tests.plugins"
ROWS, VOCABULARY, BLOCK, PARTS = 5, 1000, 256, 4
"""The last is the quotient, rounded up."""
SHAPES = [(ROWS, VOCABULARY), (ROWS,)]


@pytest.fixture(scope="module")
def trt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as module:
        defs.register_plugin(ROW_PARTS, twin, package=PACKAGE)
        yield module


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In place of Triton's compiler; what it was asked for is in the list."""
    made: list[Any] = []
    kernel = SimpleNamespace(entry="row_parts", ptx="", block_x=64, shared_bytes=0)
    monkeypatch.setattr(defs, "compile_kernel", lambda *arguments, **names: made.append(names) or kernel)
    return made


def twin(logits: torch.Tensor, bias: torch.Tensor, *, lowest: int) -> tuple[torch.Tensor, ...]:
    parts = [part[:, max(0, lowest - start) :] for start, part in _blocks(logits)]
    best = torch.stack([(part.float() * 0.5 + bias[:, None]).amax(1) for part in parts], 1)
    ids = torch.stack([part.float().argmax(1) for part in parts], 1).int()
    return best, ids, logits[:, :BLOCK]


def _blocks(logits: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, logits.shape[1], BLOCK):
        yield start, logits[:, start : start + BLOCK]


def added(trt: Any, *, eager: bool = False, architecture: int = 80) -> Any:
    """The plugin of the sample kernel as a network holds it."""
    network = Network(trt)
    tensors = [trt.ITensor.__new__(trt.ITensor) for _ in ROW_PARTS.inputs]
    outputs = defs.add_plugin(network, ROW_PARTS, tensors, architecture=architecture, eager=eager, lowest=3)
    assert len(outputs) == 3
    return network.plugins[0]


def kinds_of(trt: Any, logits: str = "HALF") -> list[Any]:
    """Of the inputs."""
    return [getattr(trt.DataType, logits), trt.DataType.FLOAT]


def asked(trt: Any, plugin: Any, logits: str = "HALF") -> Asked:
    builder = builder_of_expressions(trt)
    return nvinfer.asked(trt, plugin, kinds_of(trt, logits), dimensions(builder, SHAPES), builder)


def announced(trt: Any, plugin: Any) -> Announced:
    builder = builder_of_expressions(trt)
    return nvinfer.announced(plugin, kinds_of(trt), dimensions(builder, SHAPES), builder)


def names(kinds: Sequence[Any]) -> list[str]:
    return [kind.name for kind in kinds]


def test_types_of_outputs_follow_the_logits(trt: Any) -> None:
    assert names(announced(trt, added(trt)).kinds) == ["FLOAT", "INT32", "HALF"]


def test_shapes_of_outputs_are_expressions_of_those_of_inputs(trt: Any) -> None:
    plugin = added(trt)
    assert announced(trt, plugin).sizes == [[ROWS, PARTS], [ROWS, PARTS], [ROWS, BLOCK]]
    known = [[size.is_constant for size in item.shape_expr] for item in plugin.output_descs]
    assert known == [[False, False], [False, False], [False, True]]


@pytest.mark.parametrize("logits", ["HALF", "BF16"])
def test_what_is_baked_into_an_engine(trt: Any, logits: str) -> None:
    found = asked(trt, added(trt), logits)
    assert found.launch == {
        **{"grid_x": ROWS, "grid_y": PARTS, "grid_z": 1, "block_x": 64, "block_y": 1, "block_z": 1},
        "shared_mem": found.launch["shared_mem"],
    }
    assert found.launch["shared_mem"] > 0
    assert found.numbers == [VOCABULARY, 3]
    assert found.number_kinds == [trt.PluginArgDataType.INT32] * 2
    entry = ptx.read_entry(found.text)
    assert (found.entry, entry.bits) == (entry.name, (64, 64, 32, 32, 64, 64, 64))
    assert ("cvt.f32.f16" in found.text) == (logits == "HALF")


def test_all_logits_have_one_type_among_three_and_all_is_linear(trt: Any, compiled: list[Any]) -> None:
    found = asked(trt, added(trt)).combinations
    rows = [names([item.type for item in row]) for row in found]
    assert rows == [[kind, "FLOAT", "FLOAT", "INT32", kind] for kind in ("FLOAT", "HALF", "BF16")]
    assert {item.format for row in found for item in row} == {trt.TensorFormat.LINEAR}


def test_expressions_of_launches_are_nvidias_again(trt: Any, compiled: list[Any]) -> None:
    """Which write what they are given for TensorRT alone to read."""
    asked(trt, added(trt))
    number = trt.plugin.SymInt32(3)()
    with pytest.raises(AttributeError):
        print(number.expr)
    assert "expr" not in vars(number)


@pytest.mark.parametrize(
    ("known", "width", "lowest", "found"),
    [
        (True, 1024, 32, ("logits", "vocabulary", "lowest")),
        (True, 1024, 3, ("logits", "vocabulary")),
        (True, 1000, 32, ("lowest",)),
        (False, 1024, 32, ("lowest",)),
    ],
)
def test_what_is_a_multiple_of_16_in_every_run(trt: Any, known: bool, width: int, lowest: int, found: Any) -> None:
    builder = builder_of_expressions(trt)
    size = builder.constant(width) if known else builder.dimension(width)
    inputs = [trt.plugin.TensorDesc(), trt.plugin.TensorDesc()]
    rows = trt.plugin.ShapeExpr(builder.dimension(16))
    inputs[0].shape_expr = trt.plugin.ShapeExprs.from_tuple((rows, trt.plugin.ShapeExpr(size)))
    inputs[1].shape_expr = trt.plugin.ShapeExprs.from_tuple((rows,))
    sizes = symbolic.sizes(ROW_PARTS, inputs, {"lowest": lowest}, trt.plugin)
    assert symbolic.multiples_of_16(ROW_PARTS, sizes) == found


def test_an_engine_with_a_known_vocabulary_reads_vectors(trt: Any, compiled: list[Any]) -> None:
    builder = builder_of_expressions(trt)
    shapes = [[builder.dimension(ROWS), builder.constant(1024)], [builder.dimension(ROWS)]]
    nvinfer.asked(trt, added(trt), kinds_of(trt), shapes, builder)
    assert compiled == [{"multiples": ("logits", "vocabulary"), "package": PACKAGE}]


@pytest.mark.parametrize("spec", KERNELS.values(), ids=list(KERNELS))
def test_every_kernel_registers(trt: Any, spec: KernelSpec) -> None:
    defs.register_plugin(spec)
    tensors = [trt.ITensor.__new__(trt.ITensor) for _ in spec.inputs]
    network = Network(trt)
    numbers = dict.fromkeys(symbolic.numbers_of(spec), 1)
    defs.add_plugin(network, spec, tensors, architecture=80, **numbers)
    types = [symbolic.trt_type(item, "bfloat16", trt) for item in (*spec.inputs, *spec.outputs)]
    inputs = types[: len(spec.inputs)]
    given = network.plugins[0].get_output_data_types(inputs, [len(item.shape) for item in spec.inputs])
    assert names(given) == names(types[len(spec.inputs) :])


def test_the_architecture_is_the_builders_choice(trt: Any) -> None:
    with pytest.raises(ConfigError, match="architecture 91; known are 80, 86"):
        asked(trt, added(trt, architecture=91))


def test_the_twin_runs_where_python_does(trt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU's memory: tensors by their addresses, as TensorRT passes them."""
    logits, bias = torch.randn(ROWS, VOCABULARY).half(), torch.randn(ROWS)
    outputs = [torch.zeros(ROWS, PARTS), torch.zeros(ROWS, PARTS, dtype=torch.int32), torch.zeros(ROWS, BLOCK).half()]
    known = {tensor.data_ptr(): tensor for tensor in [logits, bias, *outputs]}
    streams = []
    monkeypatch.setattr(device_tensors, "as_torch", lambda tensor: known[tensor.data_ptr])
    monkeypatch.setattr(device_tensors, "on_stream", lambda stream: streams.append(stream) or torch.no_grad())
    plugin = added(trt, eager=True)
    found = announced(trt, plugin)
    pairs = zip([*SHAPES, *found.sizes], [*kinds_of(trt), *found.kinds], strict=True)
    descriptions = [nvinfer.described(trt, *pair).desc for pair in pairs]
    pointers = [tensor.data_ptr() for tensor in [logits, bias, *outputs]]
    plugin.enqueue(descriptions[:2], descriptions[2:], pointers[:2], pointers[2:], [(1,)] * 2, [(1,)] * 3, 77)
    assert streams == [77]
    for output, wanted in zip(outputs, twin(logits, bias, lowest=3), strict=True):
        assert torch.equal(output, wanted)
    assert [field.name for field in plugin.get_fields_to_serialize()] == ["lowest"]


def test_bits_of_bfloat16_are_handed_over_as_integers(trt: Any) -> None:
    tensor = trt.plugin.Tensor()
    tensor.dtype, tensor.shape, tensor.data_ptr = trt.DataType.BF16, trt.plugin.Shape((2, 3)), 4096
    interface = device_tensors.device_array(tensor).__cuda_array_interface__
    assert (interface["typestr"], interface["shape"], interface["data"]) == ("<i2", (2, 3), (4096, False))


def test_a_kernel_without_a_twin_is_ahead_of_time_only(trt: Any) -> None:
    spec = dataclasses.replace(ROW_PARTS, name="without_twin")
    defs.register_plugin(spec, package=PACKAGE)
    tensors = [trt.ITensor.__new__(trt.ITensor) for _ in spec.inputs]
    with pytest.raises(ValueError, match="JIT implementation requested, but not defined for 'trtspec::WithoutTwin'"):
        defs.add_plugin(Network(trt), spec, tensors, architecture=80, eager=True, lowest=0)


@pytest.mark.parametrize("numbers", [{}, {"lowest": 0, "vocabulary": 1}])
def test_numbers_are_those_that_no_shape_tells(trt: Any, numbers: dict[str, int]) -> None:
    with pytest.raises(KernelError, match="row_parts takes the numbers lowest; given are"):
        defs.add_plugin(Network(trt), ROW_PARTS, [], architecture=80, **numbers)


def test_logits_of_another_type_are_refused(trt: Any) -> None:
    plugin = added(trt)
    with pytest.raises(KernelError, match="logits is INT32; expected FLOAT, HALF, BF16"):
        plugin.get_output_data_types([trt.DataType.INT32, trt.DataType.FLOAT], [2, 1])


def test_an_input_of_another_rank_is_refused(trt: Any) -> None:
    plugin = added(trt)
    with pytest.raises(KernelError, match="logits has 3 dimensions; expected"):
        plugin.get_output_data_types([trt.DataType.HALF, trt.DataType.FLOAT], [3, 1])


def test_integers_as_attributes_would_not_come_back(trt: Any) -> None:
    """Why attributes are arrays. Where this fails, TensorRT's layer and NumPy agree again."""
    field = trt.PluginField("lowest", np.array([3]), trt.PluginFieldType.INT64)
    assert field.data.ndim == 1


def test_quotients_of_what_is_known_are_known() -> None:
    spec = dataclasses.replace(
        ROW_PARTS, inputs=(Array("logits", LOGITS, (5, "BLOCK")),), derived={"parts": ("BLOCK", "HALF")}
    )
    given = SimpleNamespace(ndim=2, shape_expr=(5, 256))
    spec = dataclasses.replace(spec, constants={"BLOCK": 256, "HALF": 100})
    assert symbolic.sizes(spec, [given], {"lowest": 0}, None)["parts"] == 3


def test_plugins_are_named_as_kernels_are() -> None:
    assert defs.plugin_name(ROW_PARTS) == "RowParts"


def test_without_tensorrt_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependency, match="plugins need TensorRT.*pip install 'trtspec\\[tensorrt-llm\\]'"):
        defs.register_plugin(ROW_PARTS)


def test_a_tensorrt_without_such_plugins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(__version__="10.8.0", plugin=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    monkeypatch.setitem(sys.modules, "tensorrt.plugin", old.plugin)
    with pytest.raises(MissingDependency, match="TensorRT 10.8.0 has no plugins that hold PTX"):
        defs.import_tensorrt()


def test_neither_tensorrt_nor_triton_nor_torch_is_loaded_with_the_module() -> None:
    script = "import json, sys, plugins.defs; print(json.dumps([*sys.modules]))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert {"tensorrt", "triton", "torch", "numpy"}.isdisjoint(json.loads(done.stdout))
