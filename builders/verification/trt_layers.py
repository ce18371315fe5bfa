"""Layers of TensorRT's network API; that of TensorRT for RTX has the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builders.verification.layers import Tensor
from builders.verification.limits import Limits
from plugins.contract import Array, KernelSpec
from plugins.defs import NAMESPACE, add_plugin, import_tensorrt, plugin_name, register_plugin
from trtspec.errors import KernelError

TYPES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
"""Its names of types."""


class LayerRefused(Exception):
    """Its arguments do not fit; TensorRT's log says why."""


class TensorRTLayers:
    """Adds to a network; `trt` is the module whose network it is. Plugins are for one architecture."""

    def __init__(self, network: Any, trt: Any, limits: Limits, architecture: int | None = None) -> None:
        self.network = network
        self._trt = trt
        self._limits = limits
        self._architecture = architecture
        self._values: list[Any] = []
        """TensorRT reads constants when it builds, and does not keep them itself."""

    def input(self, array: Array) -> Tensor:
        shape = [size.size for size in self._limits.ranges(array)]
        tensor = self.network.add_input(array.name, self._type(self._limits.dtype(array)), shape)
        for index, name in enumerate(array.shape):
            if isinstance(name, str):
                tensor.set_dimension_name(index, name)
        return tensor

    def output(self, array: Array, tensor: Tensor) -> None:
        tensor.name = array.name
        self.network.mark_output(tensor)

    def constant(self, values: Sequence[float], dtype: str, shape: Sequence[int]) -> Tensor:
        import numpy as np

        self._values.append(np.array(values, dtype=dtype))
        return _output(self.network.add_constant(shape, self._trt.Weights(self._values[-1])))

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return _output(self.network.add_cast(x, self._type(dtype)))

    def is_nan(self, x: Tensor) -> Tensor:
        return self._unary(x, "ISNAN")

    def is_infinite(self, x: Tensor) -> Tensor:
        return self._unary(x, "ISINF")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self._elementwise(x, y, "SUM")

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return self._elementwise(x, y, "PROD")

    def equal(self, x: Tensor, y: Tensor) -> Tensor:
        return self._elementwise(x, y, "EQUAL")

    def less(self, x: Tensor, y: Tensor) -> Tensor:
        return self._elementwise(x, y, "LESS")

    def both(self, x: Tensor, y: Tensor) -> Tensor:
        return self._elementwise(x, y, "AND")

    def either(self, x: Tensor, y: Tensor) -> Tensor:
        return self._elementwise(x, y, "OR")

    def select(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return _output(self.network.add_select(condition, x, y))

    def largest(self, x: Tensor, axis: int) -> Tensor:
        return self._reduce(x, axis, "MAX")

    def smallest(self, x: Tensor, axis: int) -> Tensor:
        return self._reduce(x, axis, "MIN")

    def total(self, x: Tensor, axis: int) -> Tensor:
        return self._reduce(x, axis, "SUM")

    def take_along(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        layer = _added(self.network.add_gather_v2(x, indices, self._trt.GatherMode.ELEMENT))
        layer.axis = axis
        return layer.get_output(0)

    def join(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        layer = _added(self.network.add_concatenation(tensors))
        layer.axis = axis
        return layer.get_output(0)

    def first_columns(self, x: Tensor, count: int) -> Tensor:
        rank = len(x.shape)
        sizes = self.join([self.pick(self.shape(x), range(rank - 1)), self.constant([count], "int64", [1])], 0)
        layer = _added(self.network.add_slice(x, [0] * rank, [0] * rank, [1] * rank))
        layer.set_input(2, sizes)
        return layer.get_output(0)

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        return _output(self.network.add_unsqueeze(x, self.constant([axis], "int64", [1])))

    def squeeze(self, x: Tensor, axis: int) -> Tensor:
        return _output(self.network.add_squeeze(x, self.constant([axis], "int64", [1])))

    def shape(self, x: Tensor) -> Tensor:
        return _output(self.network.add_shape(x))

    def pick(self, x: Tensor, places: Sequence[int]) -> Tensor:
        return _output(self.network.add_gather(x, self.constant(places, "int64", [len(places)]), 0))

    def reshape(self, x: Tensor, shape: Tensor) -> Tensor:
        layer = _added(self.network.add_shuffle(x))
        layer.set_input(1, shape)
        return layer.get_output(0)

    def count_up(self, length: Tensor) -> Tensor:
        layer = _added(self.network.add_fill([1], self._trt.FillOperation.LINSPACE, self._type("int32")))
        layer.set_input(0, length)
        layer.set_input(1, self.constant([0], "int32", []))
        layer.set_input(2, self.constant([1], "int32", [1]))
        return layer.get_output(0)

    def launch(self, spec: KernelSpec, inputs: Sequence[Tensor], numbers: Mapping[str, int]) -> tuple[Tensor, ...]:
        if self._architecture is None:
            raise KernelError(f"{spec.name} is a plugin, and no architecture was given to compile its kernel for")
        known = getattr(import_tensorrt().plugin.op, NAMESPACE, None)
        if not hasattr(known, plugin_name(spec)):
            register_plugin(spec)
        return add_plugin(self.network, spec, inputs, architecture=self._architecture, eager=False, **numbers)

    def _type(self, dtype: str) -> Any:
        return getattr(self._trt.DataType, TYPES[dtype])

    def _unary(self, x: Tensor, operation: str) -> Tensor:
        return _output(self.network.add_unary(x, getattr(self._trt.UnaryOperation, operation)))

    def _elementwise(self, x: Tensor, y: Tensor, operation: str) -> Tensor:
        return _output(self.network.add_elementwise(x, y, getattr(self._trt.ElementWiseOperation, operation)))

    def _reduce(self, x: Tensor, axis: int, operation: str) -> Tensor:
        return _output(self.network.add_reduce(x, getattr(self._trt.ReduceOperation, operation), 1 << axis, True))


def _added(layer: Any) -> Any:
    """TensorRT gives no layer where its arguments are wrong."""
    if layer is None:
        raise LayerRefused
    return layer


def _output(layer: Any) -> Tensor:
    """Of a layer with one."""
    return _added(layer).get_output(0)
