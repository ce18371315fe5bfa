"""Plugins in a network, through TensorRT's real Python layer: all that a builder asks of one that holds PTX."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    from tests.nvinfer import asked, builder_of_expressions

    builder = builder_of_expressions(trt)
    dynamic = {name: builder.dimension(size) for name, size in network.sizes.items()}
    kinds = [getattr(trt.DataType, _TYPES[item.dtype]) for item in layer.inputs]
    shapes = [[dynamic.get(size) or builder.constant(size) for size in item.shape] for item in layer.inputs]
    found = asked(trt, layer.plugin, kinds, shapes, builder)
    _check_types(layer.plugin, found, kinds)
    _check_launch(found)
    names = {id(size): name for name, size in dynamic.items()}
    named = [tuple(names.get(id(size), size.value) for size in shape) for shape in found.outputs.shapes]
    return list(zip(named, (_NAMES[kind.name] for kind in found.outputs.kinds), strict=True))


def _check_types(plugin: Any, found: Any, inputs: list[Any]) -> None:
    """In a strongly typed network types are what they are, and a plugin must take them."""
    wanted = [*inputs, *found.outputs.kinds]
    taken = [[item.type for item in row] for row in found.combinations]
    assert wanted in taken, f"{plugin.plugin_name} does not take {wanted}"


def _check_launch(found: Any) -> None:
    threads = found.launch["block_x"]
    assert 32 <= threads <= 1024 and threads % 32 == 0, f"a block of {threads} threads"
    assert min(found.grid) > 0, "an empty grid"
    assert f".entry {found.entry}(" in found.text, f"the PTX has no entry {found.entry}"
