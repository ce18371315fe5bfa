"""Whether tensors are what an engine takes. An engine cannot see that two arrays disagree; it would read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from plugins.contract import Array
from trtspec.errors import KernelError

FLAGS = {"rows": "--rows", "nodes": "--nodes", "places": "--nodes", "width": "--width"}
"""Of the builder, by the dimension whose sizes they set."""
_ALIGNMENT = {"cuda": 256}
"""Bytes that addresses are multiples of, by kind of device: what TensorRT documents for those that it is given."""
_ELSEWHERE = 16
"""What kernels that load vectors take for granted."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of one engine."""

    engine: str
    arrays: tuple[Array, ...]
    dimensions: Mapping[str, tuple[int, int, int]]
    """Least, usual and most size, by name."""
    device: torch.device

    def check(self, given: Mapping[str, Tensor]) -> None:
        """Raise an error that names the tensor, both shapes, and the way out."""
        wanted = [item.name for item in self.arrays]
        if set(given) != set(wanted):
            raise KernelError(f"{self.engine} takes {', '.join(wanted)}; given are {', '.join(given) or 'none'}")
        first: dict[str, Array] = {}
        for item in self.arrays:
            self._check_form(item, given[item.name])
            self._check_limits(item, given[item.name])
            for name in map(str, item.shape):
                first.setdefault(name, item)
                self._check_equal(name, item, first[name], given)
        self._check_equal("places", first["places"], first["nodes"], given, of="nodes", more=1)

    def _check_form(self, item: Array, tensor: Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.device != self.device:
            raise KernelError(f"{item.name} is on {tensor.device}, and the engine on {self.device}; move it there")
        if dtype != item.dtype:
            raise KernelError(f"{item.name} is {dtype}, and the engine takes {item.dtype}; cast it")
        if tensor.ndim != len(item.shape):
            names = ", ".join(map(str, item.shape))
            raise KernelError(f"{item.name} is {list(tensor.shape)}, and the engine takes [{names}]; reshape it")
        if not tensor.is_contiguous():
            raise KernelError(f"{item.name} is strided, and engines read row by row; give {item.name}.contiguous()")
        if beyond := tensor.data_ptr() % (needed := _ALIGNMENT.get(self.device.type, _ELSEWHERE)):
            raise KernelError(
                f"{item.name} begins {beyond} bytes after a multiple of {needed}, and engines on {self.device} read "
                f"from such multiples; give {item.name}.clone()"
            )

    def _check_limits(self, item: Array, tensor: Tensor) -> None:
        takes = ", ".join(_span(self.dimensions[str(name)]) for name in item.shape)
        for name, size in zip(map(str, item.shape), tensor.shape, strict=True):
            least, _, most = self.dimensions[name]
            if not least <= size <= most:
                raise KernelError(
                    f"{item.name} is {list(tensor.shape)}, and the engine takes [{takes}], so not {size} {name}; "
                    f"split or pad it, or build an engine with another {FLAGS[name]}"
                )

    def _check_equal(
        self, name: str, item: Array, other: Array, given: Mapping[str, Tensor], of: str = "", more: int = 0
    ) -> None:
        """A dimension of one array is that of another, or so many more."""
        shapes = given[item.name].shape, given[other.name].shape
        size, known = shapes[0][item.shape.index(name)], shapes[1][other.shape.index(of or name)]
        if size != known + more:
            one_more = ", one more than nodes for the root" if more else ""
            raise KernelError(
                f"{item.name} is {list(shapes[0])} and {other.name} {list(shapes[1])}; {item.name} needs "
                f"{known + more} {name}{one_more}, and has {size}"
            )


def _span(sizes: tuple[int, int, int]) -> str:
    return str(sizes[0]) if sizes[0] == sizes[2] else f"{sizes[0]} to {sizes[2]}"
