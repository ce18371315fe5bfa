"""A network definition that remembers its layers and computes them with torch: TensorRT's network API, without it.

Calls are held to the signatures of NVIDIA's bindings, types to the rules of strongly typed networks, indices to their
range. Sizes are -1 where they are not known before a run. What it has no layer for, it refuses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.fakes import nvinfer_plugins
from tests.fakes.nvinfer_plugins import TORCH
from tests.fakes.nvinfer_shapes import described
from tests.fakes.signatures import WrongCall, check

_WITH_AXIS = ("gather", "gather_v2", "concatenation")
_ELEMENTWISE: Mapping[str, Callable[[Any, Any], Any]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "EQUAL": torch.eq,
    "LESS": torch.lt,
    "AND": torch.logical_and,
    "OR": torch.logical_or,
}
_UNARY = {"ISNAN": torch.isnan, "ISINF": torch.isinf}
_REDUCE: Mapping[str, Callable[..., Any]] = {
    "MAX": lambda x, axis: x.amax(axis, keepdim=True),
    "MIN": lambda x, axis: x.amin(axis, keepdim=True),
    "SUM": lambda x, axis: x.sum(axis, keepdim=True, dtype=x.dtype),
}


def tensor_class(trt: Any) -> type:
    """Of tensors that NVIDIA's layer takes for its own."""

    class Tensor(trt.ITensor):  # type: ignore[misc]
        name = ""
        dtype: Any = None
        shape: tuple[int, ...] = ()

        def set_dimension_name(self, index: int, name: str) -> None:
            check(trt, trt.ITensor.set_dimension_name, (index, name))
            if not 0 <= index < len(self.shape):
                raise WrongCall(f"{self.name} has no dimension {index}")
            self.named[index] = name

    return Tensor


class Layer:
    """One layer: what made it, and what `ILayer` lets callers do with it."""

    __slots__ = ("network", "kind", "inputs", "given", "outputs", "_axis")

    def __init__(self, network: Network, kind: str, inputs: list[Any], given: Mapping[str, Any]) -> None:
        self.network, self.kind, self.inputs, self.given = network, kind, inputs, given
        self.outputs: list[Any] = []
        self._axis = 0

    @property
    def axis(self) -> int:
        return self._axis

    @axis.setter
    def axis(self, value: int) -> None:
        if self.kind not in _WITH_AXIS:
            raise WrongCall(f"a layer of kind {self.kind} has no axis to set")
        self._axis = value
        self.network.infer(self)

    def get_output(self, index: int) -> Any:
        return self.outputs[index] if index < len(self.outputs) else None

    def set_input(self, index: int, tensor: Any) -> None:
        if self.kind not in ("fill", "slice", "shuffle"):
            raise WrongCall(f"a layer of kind {self.kind} has fixed inputs")
        self.inputs += [None] * (index + 1 - len(self.inputs))
        self.inputs[index] = tensor
        self.network.infer(self)


class Network:
    """An `INetworkDefinition`."""

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.name = ""
        self.layers: list[Layer] = []
        self.inputs: list[Any] = []
        self.marked: list[Any] = []
        self._tensor = tensor_class(trt)

    def add_input(self, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        self._check("add_input", name, dtype, shape)
        self.inputs.append(self._new(dtype, shape, name))
        return self.inputs[-1]

    def mark_output(self, tensor: Any) -> None:
        self._check("mark_output", tensor)
        self.marked.append(tensor)

    def add_constant(self, shape: Sequence[int], weights: Any) -> Any:
        self._check("add_constant", shape, weights)
        return self._add("constant", [], value=_numbers(weights).reshape(list(shape)))

    def add_cast(self, x: Any, to_type: Any) -> Any:
        self._check("add_cast", x, to_type)
        return self._add("cast", [x], to=to_type)

    def add_unary(self, x: Any, op: Any) -> Any:
        self._check("add_unary", x, op)
        return self._add("unary", [x], op=op.name)

    def add_elementwise(self, x: Any, y: Any, op: Any) -> Any:
        self._check("add_elementwise", x, y, op)
        if len(x.shape) != len(y.shape) or x.dtype != y.dtype:
            raise WrongCall(f"{op}: {x.dtype} {x.shape} and {y.dtype} {y.shape}")
        return self._add("elementwise", [x, y], op=op.name)

    def add_select(self, condition: Any, x: Any, y: Any) -> Any:
        self._check("add_select", condition, x, y)
        if condition.dtype.name != "BOOL" or x.dtype != y.dtype or len({len(t.shape) for t in (condition, x, y)}) > 1:
            raise WrongCall(f"select: {condition.dtype} {condition.shape}, {x.dtype} {x.shape}, {y.dtype} {y.shape}")
        return self._add("select", [condition, x, y])

    def add_reduce(self, x: Any, op: Any, axes: int, keep_dims: bool) -> Any:
        self._check("add_reduce", x, op, axes, keep_dims)
        if not keep_dims or axes.bit_count() != 1 or x.dtype.name == "BOOL":
            raise WrongCall(f"reduce: axes {axes:b} of {x.dtype}, keep_dims {keep_dims}")
        return self._add("reduce", [x], op=op.name, reduced=axes.bit_length() - 1)

    def add_gather(self, x: Any, indices: Any, axis: int) -> Any:
        self._check("add_gather", x, indices, axis)
        return self._add("gather", [x, indices], along=axis)

    def add_gather_v2(self, x: Any, indices: Any, mode: Any) -> Any:
        self._check("add_gather_v2", x, indices, mode)
        if mode.name != "ELEMENT":
            raise WrongCall(f"this double gathers by element only, not by {mode}")
        return self._add("gather_v2", [x, indices])

    def add_concatenation(self, tensors: Sequence[Any]) -> Any:
        self._check("add_concatenation", tensors)
        if len({(tensor.dtype.name, len(tensor.shape)) for tensor in tensors}) > 1:
            raise WrongCall(f"concatenation of {[(tensor.dtype, tensor.shape) for tensor in tensors]}")
        return self._add("concatenation", list(tensors))

    def add_slice(self, x: Any, start: Sequence[int], shape: Sequence[int], stride: Sequence[int]) -> Any:
        self._check("add_slice", x, start, shape, stride)
        if any(start) or set(stride) != {1}:
            raise WrongCall("this double slices from 0 in steps of 1 only")
        return self._add("slice", [x], sizes=tuple(shape))

    def add_unsqueeze(self, x: Any, axes: Any) -> Any:
        self._check("add_unsqueeze", x, axes)
        return self._add("unsqueeze", [x, axes])

    def add_squeeze(self, x: Any, axes: Any) -> Any:
        self._check("add_squeeze", x, axes)
        return self._add("squeeze", [x, axes])

    def add_shape(self, x: Any) -> Any:
        self._check("add_shape", x)
        return self._add("shape", [x])

    def add_shuffle(self, x: Any) -> Any:
        self._check("add_shuffle", x)
        return self._add("shuffle", [x])

    def add_fill(self, shape: Sequence[int], op: Any, output_type: Any) -> Any:
        self._check("add_fill", shape, op, output_type)
        if op.name != "LINSPACE" or len(shape) != 1:
            raise WrongCall(f"this double counts up along one axis only, not {op} of {shape}")
        return self._add("fill", [], to=output_type)

    def add_plugin(self, func: Any, aot: bool) -> Any:
        self._check("add_plugin", func, aot)
        wanted = self.trt.QuickPluginCreationRequest
        inputs, shape_inputs, plugin = func(wanted.STRICT_AOT if aot else wanted.STRICT_JIT)
        if shape_inputs or not aot:
            raise WrongCall("this double has plugins that are compiled ahead of time only")
        ranks = [len(item.shape) for item in nvinfer_plugins.spec_of(plugin).outputs]
        return self._add("plugin", inputs, plugin=plugin, ranks=ranks)

    def infer(self, layer: Layer) -> None:
        """Types and sizes of a layer's outputs, as far as they are known."""
        made = described(self.trt, layer)
        layer.outputs += [self._new(None, ()) for _ in made[len(layer.outputs) :]]
        for tensor, (dtype, shape) in zip(layer.outputs, made, strict=True):
            tensor.dtype, tensor.shape = dtype, tuple(shape)

    def execute(self, inputs: Mapping[str, torch.Tensor], shapes_only: bool = False) -> dict[str, torch.Tensor]:
        """Outputs by name; of plugins only the shapes that they announce, where no more is asked for."""
        values = {id(tensor): inputs[tensor.name] for tensor in self.inputs}
        for layer in self._in_order():
            given = [values[id(tensor)] for tensor in layer.inputs if tensor is not None]
            results = self._results(layer, given, shapes_only)
            for tensor, result in zip(layer.outputs, results, strict=True):
                assert result.dtype == TORCH[tensor.dtype.name], (layer.kind, result.dtype, tensor.dtype)
                assert _agree(tuple(result.shape), tensor.shape), (layer.kind, result.shape, tensor.shape)
                values[id(tensor)] = result
        return {tensor.name: values[id(tensor)] for tensor in self.marked}

    def _in_order(self) -> list[Layer]:
        """Layers after those whose outputs they take; inputs may be set after a layer was added."""
        made = {id(tensor): layer for layer in self.layers for tensor in layer.outputs}
        ordered: dict[int, Layer] = {}

        def visit(layer: Layer) -> None:
            for tensor in layer.inputs:
                if id(tensor) in made and id(made[id(tensor)]) not in ordered:
                    visit(made[id(tensor)])
            ordered[id(layer)] = layer

        for layer in self.layers:
            if id(layer) not in ordered:
                visit(layer)
        return list(ordered.values())

    def _results(self, layer: Layer, given: Sequence[torch.Tensor], shapes_only: bool) -> Sequence[torch.Tensor]:
        if layer.kind != "plugin":
            return [_value(layer, given)]
        return nvinfer_plugins.outputs(self.trt, layer.given["plugin"], layer.inputs, given, shapes_only)

    def _add(self, kind: str, inputs: list[Any], **given: Any) -> Any:
        layer = Layer(self, kind, inputs, given)
        self.layers.append(layer)
        self.infer(layer)
        return layer

    def _new(self, dtype: Any, shape: Sequence[int], name: str = "") -> Any:
        tensor = self._tensor.__new__(self._tensor)
        tensor.dtype, tensor.shape, tensor.name, tensor.named = dtype, tuple(shape), name, {}
        return tensor

    def _check(self, name: str, *arguments: Any) -> None:
        check(self.trt, getattr(self.trt.INetworkDefinition, name), arguments)


def _numbers(weights: Any) -> torch.Tensor:
    """What `Weights` point to; in NumPy 2.4 the arrays that TensorRT 10.14 makes of them have strides of 0."""
    kind = TORCH[weights.dtype.name]
    memory = (ctypes.c_char * (weights.size * kind.itemsize)).from_address(weights.numpy().ctypes.data)
    return torch.frombuffer(bytearray(memory), dtype=kind)


def _agree(found: tuple[int, ...], announced: tuple[int, ...]) -> bool:
    return len(found) == len(announced) and all(b in (-1, a) for a, b in zip(found, announced, strict=True))


def _value(layer: Layer, x: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a native layer computes."""
    given = layer.given
    compute: Mapping[str, Callable[[], torch.Tensor]] = {
        "constant": lambda: given["value"],
        "cast": lambda: x[0].to(TORCH[given["to"].name]),
        "unary": lambda: _UNARY[given["op"]](x[0]),
        "elementwise": lambda: _ELEMENTWISE[given["op"]](x[0], x[1]),
        "select": lambda: torch.where(x[0], x[1], x[2]),
        "reduce": lambda: _REDUCE[given["op"]](x[0], given["reduced"]),
        "gather": lambda: x[0].index_select(given["along"], x[1].long()),
        "gather_v2": lambda: x[0].gather(layer.axis, x[1].long()),
        "concatenation": lambda: torch.cat(list(x), dim=layer.axis),
        "slice": lambda: x[0][tuple(slice(0, size) for size in x[1].tolist())],
        "unsqueeze": lambda: x[0].unsqueeze(int(x[1])),
        "squeeze": lambda: x[0].squeeze(int(x[1])),
        "shape": lambda: torch.tensor(x[0].shape),
        "shuffle": lambda: x[0].reshape(x[1].tolist()),
        "fill": lambda: x[1] + torch.arange(int(x[0]), dtype=torch.int32) * x[2],
    }
    if layer.kind == "gather_v2":  # torch lets indices be shorter than the data
        assert [s for i, s in enumerate(x[0].shape) if i != layer.axis] == [
            s for i, s in enumerate(x[1].shape) if i != layer.axis
        ]
    return compute[layer.kind]()
