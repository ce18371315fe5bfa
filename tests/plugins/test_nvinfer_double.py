"""The double of TensorRT's builder refuses what the real one would: other arguments, types, sizes and orders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.installed import need_plugins
from tests.fakes.nvinfer_engine import Config, Context, Plan, Profile, engines
from tests.fakes.nvinfer_network import Network
from tests.fakes.signatures import WrongCall
from tests.nvinfer import tensorrt_without_libraries


@pytest.fixture(scope="module")
def trt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as module:
        yield module


def network(trt: Any) -> Any:
    made = Network(trt)
    made.x = made.add_input("x", trt.DataType.FLOAT, [-1, 5])
    made.ids = made.add_input("ids", trt.DataType.INT32, [-1, 5])
    return made


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "a type by name": lambda net, trt: net.add_cast(net.x, "FLOAT"),
    "a number for a tensor": lambda net, trt: net.add_unary(1, trt.UnaryOperation.ISNAN),
    "an operation of another layer": lambda net, trt: net.add_unary(net.x, trt.ElementWiseOperation.SUM),
    "an axis for its bit": lambda net, trt: net.add_reduce(net.x, trt.ReduceOperation.MAX, 3, True),
    "a reduction of truths": lambda net, trt: net.add_reduce(
        net.add_unary(net.x, trt.UnaryOperation.ISNAN).get_output(0), trt.ReduceOperation.MAX, 1, True
    ),
    "two types": lambda net, trt: net.add_elementwise(net.x, net.ids, trt.ElementWiseOperation.SUM),
    "two ranks": lambda net, trt: net.add_elementwise(
        net.x, net.add_input("y", trt.DataType.FLOAT, [5]), trt.ElementWiseOperation.SUM
    ),
    "a condition that is a number": lambda net, trt: net.add_select(net.ids, net.x, net.x),
    "a fixed input": lambda net, trt: net.add_cast(net.x, trt.DataType.INT32).set_input(0, net.ids),
    "an axis of a layer without": lambda net, trt: setattr(net.add_shape(net.x), "axis", 1),
    "a dimension that is not there": lambda net, trt: net.x.set_dimension_name(2, "more"),
    "types that do not join": lambda net, trt: net.add_concatenation([net.x, net.ids]),
    "a plugin that is none": lambda net, trt: net.add_plugin(net.x, True),
    "sizes as text": lambda net, trt: net.add_input("z", trt.DataType.FLOAT, "12"),
    "a name too many": lambda net, trt: net._check("add_shape", net.x, "name"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_wrong_calls_of_a_network(trt: Any, wrong: Callable[[Any, Any], object]) -> None:
    with pytest.raises(WrongCall):
        wrong(network(trt), trt)


def test_attributes_and_calls_that_it_does_not_know(trt: Any) -> None:
    made = network(trt)
    with pytest.raises(AttributeError):
        made.add_matrix_multiply(made.x, made.x)
    with pytest.raises(AttributeError):
        made.add_shape(made.x).precision = trt.DataType.HALF


def test_what_a_layer_gives_is_computed_as_documented(trt: Any) -> None:
    made = network(trt)
    names = trt.ElementWiseOperation
    two = made.add_constant([1, 1], trt.Weights(np.array([2], dtype=np.int32))).get_output(0)
    layer = made.add_elementwise(made.ids, two, names.PROD)
    (result,) = layer.outputs
    assert (result.dtype.name, result.shape) == ("INT32", (-1, 5))


@pytest.mark.parametrize(
    "sizes",
    [{"x": [(1, 5), (2, 5), (3, 5)]}, {"x": [(1, 5)] * 3, "ids": [(1, 4)] * 3}, {"x": [(1, 5)] * 3, "y": [(1, 5)] * 3}],
)
def test_a_builder_gives_no_engine_without_a_whole_profile(trt: Any, sizes: dict[str, Any]) -> None:
    heard: list[str] = []

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            heard.append(message)

    with engines(trt) as plans:
        builder, made = trt.Builder(Log()), network(trt)
        output = made.add_shape(made.x).get_output(0)
        output.name = "output"
        made.mark_output(output)
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        for name, shapes in sizes.items():
            profile.set_shape(name, *shapes)
        assert config.add_optimization_profile(profile) == 0
        assert builder.build_serialized_network(made, config) is None
    assert len(heard) == 1
    assert "profile" in heard[0]
    assert plans == []


def test_addresses_are_aligned(trt: Any) -> None:
    context = Context(trt, Plan(network(trt), {}))
    assert [context.set_tensor_address("x", memory) for memory in (4096, 4112, 4104, 4100)] == [
        True,
        True,
        False,
        False,
    ]


def test_profiles_and_flags(trt: Any) -> None:
    with pytest.raises(ValueError, match="x: "):
        Profile(trt).set_shape("x", [2], [1], [3])
    with pytest.raises(WrongCall):
        Config(trt).set_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    with pytest.raises(WrongCall):
        Config(trt).add_optimization_profile({"x": 1})
    with engines(trt), pytest.raises(WrongCall):
        trt.Builder("no logger")


def test_a_process_that_is_killed_leaves_no_folder(tmp_path: Path) -> None:
    """And has a whole package all the same, beside the double of TensorRT-LLM."""
    need_plugins()
    script = "import os, tensorrt.plugin as trtp; print(trtp.cdiv.__name__, flush=True); os.kill(os.getpid(), 9)"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root / "tests" / "fakes"), str(root)])
    variables = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[-1:]) == (-signal.SIGKILL, ["cdiv"]), done.stderr
    assert list(tmp_path.iterdir()) == []
