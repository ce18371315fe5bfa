"""A real compiler of TensorRT's, which needs no GPU, takes our networks and our graphs for all chips it knows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import verifier
from builders.verification import onnx_compiler, trt_compiler
from builders.verification.kinds import KINDS, RTX_ARCHITECTURES, RTX_DEFAULT
from builders.verification.limits import Limits, Range
from builders.verification.networks import GREEDY_TREES
from builders.verification.trt_layers import TensorRTLayers
from plugins import runtime, verifier_folder
from plugins.verification_specs import MOST_NODES
from tests.fakes.nvinfer_network import Network
from tests.nvinfer import tensorrt_without_libraries
from trtspec.errors import ConfigError, EngineFolderError, KernelError

rtx = pytest.importorskip(
    "tensorrt_rtx_bindings",
    reason="TensorRT for RTX is not installed: pip install tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings",
)

PADDED = Limits(Range(1, 8, 64), Range(1, 8, MOST_NODES), Range(32000, 32064, 40000), 32000, "float16")
FIXED = Limits(Range(4, 4, 4), Range(7, 7, 7), Range(50, 50, 50), 50, "float32")
SMALL = Limits(Range(1, 2, 4), Range(1, 1, 1), Range(100, 100, 100), 99, "bfloat16")


@pytest.fixture(scope="module")
def definition() -> Iterator[Any]:
    """A network as the compiler holds it, of the padded limits."""
    builder = rtx.Builder(rtx.Logger(rtx.Logger.ERROR))
    network = builder.create_network(1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    layers = TensorRTLayers(network, rtx, PADDED)
    GREEDY_TREES.write(layers, PADDED)
    yield network


def told(tensor: Any) -> tuple[str, str, tuple[int, ...]]:
    return tensor.name, tensor.dtype.name, tuple(tensor.shape)


def test_what_the_network_takes_and_gives(definition: Any) -> None:
    assert [told(definition.get_input(index)) for index in range(definition.num_inputs)] == [
        ("logits", "HALF", (-1, -1, -1)),
        ("tokens", "INT32", (-1, -1)),
        ("parents", "INT32", (-1, -1)),
        ("counts", "INT32", (-1,)),
    ]
    assert [told(definition.get_output(index)) for index in range(definition.num_outputs)] == [
        ("ids", "INT32", (-1, -1)),
        ("path", "INT32", (-1, -1)),
        ("accepted", "INT32", (-1,)),
        ("emitted", "INT32", (-1, -1)),
        ("bonus", "INT32", (-1,)),
    ]
    names = [definition.get_input(0).get_dimension_name(axis) for axis in range(3)]
    assert names == ["rows", "places", "width"]


def test_it_is_small(definition: Any) -> None:
    """No loop is unrolled: as many layers for 64 nodes as steps that double, and not as nodes."""
    assert definition.num_layers < 200


def test_our_double_of_a_network_says_what_the_real_one_does(
    definition: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of every layer: the type of what it gives, its rank, and sizes where the double knows them."""
    with tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as trt:
        ours = Network(trt)
        GREEDY_TREES.write(TensorRTLayers(ours, trt, PADDED), PADDED)
        assert len(ours.layers) == definition.num_layers
        for index, layer in enumerate(ours.layers):
            real = definition.get_layer(index).get_output(0)
            (made,) = layer.outputs
            assert made.dtype.name == real.dtype.name, layer.kind
            assert len(made.shape) == len(tuple(real.shape)), layer.kind
            known = [(a, b) for a, b in zip(made.shape, tuple(real.shape), strict=True) if -1 not in (a, b)]
            assert all(a == b for a, b in known), (layer.kind, known)


@pytest.mark.parametrize(
    "limits",
    [PADDED, *(pytest.param(limits, marks=pytest.mark.slow) for limits in (FIXED, SMALL))],
    ids=["padded", "fixed", "small"],
)
def test_it_compiles_for_all_its_chips_at_once(limits: Limits) -> None:
    plan = trt_compiler.compile_network(rtx, GREEDY_TREES, limits, RTX_DEFAULT)
    for item in (*GREEDY_TREES.inputs, *GREEDY_TREES.outputs):
        assert item.name.encode() in plan


@pytest.mark.slow
@pytest.mark.parametrize("architecture", RTX_ARCHITECTURES)
def test_it_compiles_for_each_of_its_chips(architecture: int) -> None:
    assert len(trt_compiler.compile_network(rtx, GREEDY_TREES, FIXED, [architecture])) > 10_000


def test_turing_has_no_bfloat16_and_the_compiler_says_so() -> None:
    with pytest.raises(KernelError, match="compiled no engine of network trees: .*sm75, because .*b16"):
        trt_compiler.compile_network(rtx, GREEDY_TREES, SMALL, [75, 80])


@pytest.mark.slow
def test_each_chip_has_an_engine_of_its_own() -> None:
    plans = [trt_compiler.compile_network(rtx, GREEDY_TREES, SMALL, [item]) for item in RTX_DEFAULT]
    assert all(one != other for one, other in itertools.combinations(plans, 2))


def test_its_chips_are_those_that_we_offer() -> None:
    names = set(rtx.ComputeCapability.__members__) - {"NONE", "CURRENT"}
    assert names == {f"SM{item}" for item in RTX_ARCHITECTURES}
    assert set(RTX_DEFAULT) < set(RTX_ARCHITECTURES)


def test_a_chip_that_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="--architecture 90: tensorrt_rtx_bindings 1.* does not build for it"):
        trt_compiler.compile_network(rtx, GREEDY_TREES, SMALL, [90])


def test_the_graph_that_we_write_compiles_too() -> None:
    """The file, read by TensorRT's own parser."""
    onnx = pytest.importorskip("onnx", reason="exporting networks needs onnx: pip install onnx")
    builder = rtx.Builder(log := rtx.Logger(rtx.Logger.ERROR))
    network = builder.create_network(1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = rtx.OnnxParser(network, log)
    graph = onnx_compiler.compile_network(onnx, GREEDY_TREES, PADDED, ())
    assert parser.parse(graph), [parser.get_error(index).desc() for index in range(parser.num_errors)]
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for item in GREEDY_TREES.inputs:
        ranges = PADDED.ranges(item)
        profile.set_shape(item.name, *([getattr(size, key) for size in ranges] for key in ("least", "usual", "most")))
    assert config.add_optimization_profile(profile) == 0
    assert builder.build_serialized_network(network, config) is not None


def test_what_the_compiler_says_is_in_the_error() -> None:
    """An array without a profile, here."""
    network = dataclasses.replace(
        GREEDY_TREES,
        make=lambda layers, inputs, limits: {
            name: layers.reshape(inputs["logits"], layers.constant([3, 3], "int64", [2]))
            for name in ("ids", "path", "accepted", "emitted", "bonus")
        },
    )
    with pytest.raises(
        KernelError, match="tensorrt_rtx_bindings 1.* compiled no engine of network trees: .*[Rr]eshape"
    ):
        trt_compiler.compile_network(rtx, network, FIXED, [80])


def test_a_layer_that_it_refuses() -> None:
    network = dataclasses.replace(GREEDY_TREES, make=lambda layers, inputs, limits: {"ids": layers.join([], 0)})
    with pytest.raises(
        KernelError, match="tensorrt_rtx_bindings 1.* refused a layer of network trees: .*addConcatenation"
    ):
        trt_compiler.compile_network(rtx, network, FIXED, [80])


def test_the_command_builds_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "verifier"
    flags = ["--compiler", "tensorrt_rtx", "--vocabulary", "99", "--width", "100", "--logits", "bfloat16"]
    assert verifier.main(["--kind", "native", *flags, "--architecture", "89", "--output", str(output)]) == 0
    record = verifier_folder.read(output)
    assert (record.compiler, record.compiler_version) == ("tensorrt_rtx", rtx.__version__)
    assert (record.architectures, record.vocabulary, record.logits) == ((89,), 99, "bfloat16")
    assert record.dimensions["places"] == (2, 9, MOST_NODES + 1)
    assert record.engines["trees"].inputs[0].dtype == "bfloat16"
    assert (output / "trees.engine").stat().st_size == record.engines["trees"].bytes
    said = capsys.readouterr().out
    assert f"{output}/trees.engine  {record.engines['trees'].bytes / 1e6:.2f} MB" in said
    assert "sm_89" in said
    with pytest.raises(EngineFolderError, match="cannot load it here; it was built with tensorrt_rtx .* for sm_89"):
        runtime.open_verifier(output, "cpu")


def test_it_has_no_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not hasattr(rtx.INetworkDefinition, "add_plugin")
    flags = ["--kind", "plugins", "--compiler", "tensorrt_rtx", "--vocabulary", "5", "--output", str(tmp_path / "v")]
    assert verifier.main(flags) == 2
    assert "--compiler tensorrt_rtx builds no --kind plugins; tensorrt does" in capsys.readouterr().err
    assert [route.compiler.name for route in KINDS["plugins"].routes] == ["tensorrt"]
