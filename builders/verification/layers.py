"""The few layers that networks are written in; TensorRT's network API and ONNX are their backends.

Elementwise layers broadcast sizes of 1, and take tensors of one rank and one type. Reductions keep their axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from plugins.contract import Array

Tensor = Any
"""A backend's own handle."""


class Layers(Protocol):
    """Adds layers to one network."""

    def input(self, array: Array) -> Tensor: ...

    def output(self, array: Array, tensor: Tensor) -> None:
        """Name a tensor as what the network gives."""

    def constant(self, values: Sequence[float], dtype: str, shape: Sequence[int]) -> Tensor: ...

    def cast(self, x: Tensor, dtype: str) -> Tensor: ...

    def is_nan(self, x: Tensor) -> Tensor: ...

    def is_infinite(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, y: Tensor) -> Tensor: ...

    def multiply(self, x: Tensor, y: Tensor) -> Tensor: ...

    def equal(self, x: Tensor, y: Tensor) -> Tensor: ...

    def less(self, x: Tensor, y: Tensor) -> Tensor: ...

    def both(self, x: Tensor, y: Tensor) -> Tensor: ...

    def either(self, x: Tensor, y: Tensor) -> Tensor: ...

    def select(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`x` where the condition holds, else `y`."""

    def largest(self, x: Tensor, axis: int) -> Tensor: ...

    def smallest(self, x: Tensor, axis: int) -> Tensor: ...

    def total(self, x: Tensor, axis: int) -> Tensor: ...

    def take_along(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """At each place of the indices, what `x` has there with the index on that axis."""

    def join(self, tensors: Sequence[Tensor], axis: int) -> Tensor: ...

    def first_columns(self, x: Tensor, count: int) -> Tensor:
        """Of the last axis."""

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor: ...

    def squeeze(self, x: Tensor, axis: int) -> Tensor: ...

    def shape(self, x: Tensor) -> Tensor:
        """int64, one number for each dimension."""

    def pick(self, x: Tensor, places: Sequence[int]) -> Tensor:
        """Some numbers of a shape."""

    def reshape(self, x: Tensor, shape: Tensor) -> Tensor: ...

    def count_up(self, length: Tensor) -> Tensor:
        """0, 1, 2, ... as int32; `length` is a shape of one number."""
