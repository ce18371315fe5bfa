"""Plugins in a network, through TensorRT's real Python layer: all that a builder asks of one that holds PTX."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32", "int64": "INT64"}
_NAMES = {value: key for key, value in _TYPES.items()}


@dataclass
class Layer:
    """A plugin with what goes in and comes out."""

    plugin: Any
    inputs: list[Any]
    """Arrays of the network."""
    facts: dict[str, Any] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    """TensorRT's tensors."""

    def get_output(self, index: int) -> Any:
        return self.outputs[index]


def add(network: Any, instance: Any, aot: bool | None) -> Layer:
    """Raises what the plugin raises; a plugin whose types or shapes do not fit is refused as a build would be."""
    import tensorrt as trt

    assert aot, "a plugin that needs Python cannot run in the executor: its kernel must be compiled ahead of time"
    handles, shape_inputs, plugin = instance(trt.QuickPluginCreationRequest.STRICT_AOT)
    assert not shape_inputs
    layer = Layer(plugin, [network.array(handle) for handle in handles])
    made = _described(trt, network, layer)
    layer.facts = {"name": f"{plugin.plugin_namespace}::{plugin.plugin_name}", "numbers": _numbers(plugin)}
    for index, (shape, dtype) in enumerate(made):
        layer.outputs.append(network.handle(_array(layer, index, shape, dtype)))
    return layer


def _array(layer: Layer, index: int, shape: tuple[str | int, ...], dtype: str) -> Any:
    from tensorrt_llm._double.network import Array

    return Array((layer, index), shape, dtype)


def _numbers(plugin: Any) -> dict[str, int]:
    return {name: int(value[0]) for name, value in plugin.attrs.items()}


def _described(trt: Any, network: Any, layer: Layer) -> list[tuple[tuple[str | int, ...], str]]:
    """Shape and type of each output; on the way the kernel is compiled."""
    from tests.nvinfer import Scalars, builder_of_expressions, described

    plugin, inputs = layer.plugin, layer.inputs
    kinds = [getattr(trt.DataType, _TYPES[item.dtype]) for item in inputs]
    given = plugin.get_output_data_types(kinds, [len(item.shape) for item in inputs])
    builder = builder_of_expressions(trt)
    dynamic = {name: builder.dimension(size) for name, size in network.sizes.items()}
    shapes = [[dynamic.get(size) or builder.constant(size) for size in item.shape] for item in inputs]
    plugin.get_output_shapes(shapes, [], builder)
    expressions = [[size._expr for size in item.shape_expr] for item in plugin.output_descs]
    sizes = [tuple(size.value for size in shape) for shape in (*shapes, *expressions)]
    arrays = [described(trt, *pair) for pair in zip(sizes, [*kinds, *given], strict=True)]
    _check_types(plugin, arrays, len(inputs))
    plugin.set_tactic(0)
    _readable()
    launch, scalars = SimpleNamespace(), Scalars()
    plugin.get_launch_params([], arrays, len(inputs), launch, scalars, builder)
    threads = launch.block_x.expr.value
    assert 32 <= threads <= 1024 and threads % 32 == 0, f"a block of {threads} threads"
    assert min(launch.grid_x.expr.value, launch.grid_y.expr.value, launch.grid_z.expr.value) > 0, "an empty grid"
    descriptions = [item.desc for item in arrays]
    entry, text = plugin.get_kernel(descriptions[: len(inputs)], descriptions[len(inputs) :])
    assert f".entry {entry}(" in text.decode(), f"the PTX has no entry {entry}"
    names = {id(size): name for name, size in dynamic.items()}
    result = []
    for shape, kind in zip(expressions, given, strict=True):
        result.append((tuple(names.get(id(size), size.value) for size in shape), _NAMES[kind.name]))
    return result


def _check_types(plugin: Any, arrays: list[Any], inputs: int) -> None:
    """In a strongly typed network types are what they are, and a plugin must take them."""
    offered = plugin.get_supported_format_combinations(arrays, inputs)
    count, wanted = len(arrays), [item.desc.type for item in arrays]
    rows = [offered[start : start + count] for start in range(0, len(offered), count)]
    assert wanted in [[item.type for item in row] for row in rows], f"{plugin.plugin_name} does not take {wanted}"


def _readable() -> None:
    """NVIDIA's expressions of launches have setters and no getters."""
    kind = sys.modules["tensorrt.plugin._tensor"].SymExprImpl
    for name in ("expr", "dtype"):
        setattr(kind, name, None)
