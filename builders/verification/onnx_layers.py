"""Layers as nodes of an ONNX graph: for compilers that read files, and to check a network's numbers on any machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builders.verification.layers import Tensor
from builders.verification.limits import Limits
from plugins.contract import Array

OPSET = 18
"""The first in which all reductions take their axes as a tensor."""
IR_VERSION = 8
"""That of ONNX 1.13, which brought this opset."""
TYPES = {
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
"""Its names of types."""


class OnnxLayers:
    """Collects nodes; tensors are their names. `onnx` is that package."""

    def __init__(self, onnx: Any, limits: Limits) -> None:
        self._onnx = onnx
        self._limits = limits
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def model(self, name: str) -> Any:
        """The network so far, checked."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="trtspec")
        self._onnx.checker.check_model(model, full_check=True)
        return model

    def input(self, array: Array) -> Tensor:
        self._inputs.append(self._described(array))
        return array.name

    def output(self, array: Array, tensor: Tensor) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [tensor], [array.name]))
        self._outputs.append(self._described(array))

    def constant(self, values: Sequence[float], dtype: str, shape: Sequence[int]) -> Tensor:
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.helper.make_tensor(name, self._type(dtype), shape, values))
        return name

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return self._node("Cast", x, to=self._type(dtype))

    def is_nan(self, x: Tensor) -> Tensor:
        return self._node("IsNaN", x)

    def is_infinite(self, x: Tensor) -> Tensor:
        return self._node("IsInf", x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self._node("Add", x, y)

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return self._node("Mul", x, y)

    def equal(self, x: Tensor, y: Tensor) -> Tensor:
        return self._node("Equal", x, y)

    def less(self, x: Tensor, y: Tensor) -> Tensor:
        return self._node("Less", x, y)

    def both(self, x: Tensor, y: Tensor) -> Tensor:
        return self._node("And", x, y)

    def either(self, x: Tensor, y: Tensor) -> Tensor:
        return self._node("Or", x, y)

    def select(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self._node("Where", condition, x, y)

    def largest(self, x: Tensor, axis: int) -> Tensor:
        return self._node("ReduceMax", x, self._axes(axis))

    def smallest(self, x: Tensor, axis: int) -> Tensor:
        return self._node("ReduceMin", x, self._axes(axis))

    def total(self, x: Tensor, axis: int) -> Tensor:
        return self._node("ReduceSum", x, self._axes(axis))

    def take_along(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        return self._node("GatherElements", x, indices, axis=axis)

    def join(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return self._node("Concat", *tensors, axis=axis)

    def first_columns(self, x: Tensor, count: int) -> Tensor:
        return self._node("Slice", x, self._axes(0), self._axes(count), self._axes(-1))

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        return self._node("Unsqueeze", x, self._axes(axis))

    def squeeze(self, x: Tensor, axis: int) -> Tensor:
        return self._node("Squeeze", x, self._axes(axis))

    def shape(self, x: Tensor) -> Tensor:
        return self._node("Shape", x)

    def pick(self, x: Tensor, places: Sequence[int]) -> Tensor:
        return self._node("Gather", x, self.constant(places, "int64", [len(places)]), axis=0)

    def reshape(self, x: Tensor, shape: Tensor) -> Tensor:
        return self._node("Reshape", x, shape)

    def count_up(self, length: Tensor) -> Tensor:
        end = self.squeeze(self.cast(length, "int32"), 0)
        return self._node("Range", self.constant([0], "int32", []), end, self.constant([1], "int32", []))

    def _axes(self, axis: int) -> Tensor:
        return self.constant([axis], "int64", [1])

    def _node(self, kind: str, *inputs: Tensor, **attributes: Any) -> Tensor:
        name = f"tensor_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def _described(self, array: Array) -> Any:
        ranges = self._limits.ranges(array)
        shape = [size.most if size.fixed else name for name, size in zip(array.shape, ranges, strict=True)]
        return self._onnx.helper.make_tensor_value_info(array.name, self._type(self._limits.dtype(array)), shape)

    def _type(self, dtype: str) -> int:
        return int(getattr(self._onnx.TensorProto, TYPES[dtype]))
