"""A GPU that is not there: tensors on it lie on the CPU, and say that they do not.

What a real one would refuse, an operation over tensors of both devices, fails here. What makes the host wait for a
real one is written down: copies of memory that is not pinned, values that are read, and indices that must be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
_READS = ("cpu", "tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
_COUNTED = ("nonzero", "masked_select", "unique", "bincount")
"""How large their result is depends on values."""


class OnGpu(Tensor):
    """A tensor that lies there; so does what is computed from it."""


class Pinned(Tensor):
    """What `pin_memory` gives."""


class FakeGpu(TorchFunctionMode):
    """Active as a context. `waits` says where the host waited, `sent` how many copies it did not wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.sent = 0
        self._paused = False

    def kernel(self, twin: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        """A function of the CPU as a kernel: it refuses tensors that lie elsewhere, and nobody waits for it."""

        def launched(*args: Any) -> tuple[Tensor, ...]:
            assert all(isinstance(item, OnGpu) and item.is_contiguous() for item in _tensors(args))
            self._paused = True
            try:
                result = twin(*(item.as_subclass(Tensor) if isinstance(item, OnGpu) else item for item in args))
                return type(result)(*(item.as_subclass(OnGpu) for item in result))
            finally:
                self._paused = False

        return launched

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if self._paused:
            return func(*args, **named)
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if isinstance(args[0], OnGpu) else CPU
        if name == "pin_memory":
            return args[0].as_subclass(Pinned)
        if name == "to" and GPU in (*args[1:], named.get("device")):
            return self._copied(args[0], named.get("non_blocking", False))
        if named.get("device") == GPU:  # a new tensor
            made = func(*args, **{**named, "device": CPU})
            self.waits += [name] * (name in ("tensor", "as_tensor"))
            return made.as_subclass(OnGpu)
        there = [item for item in _tensors((args, named)) if isinstance(item, OnGpu)]
        if there:
            self._note(name, args, named)
        result = func(*args, **named)
        return result.as_subclass(Tensor) if there and name == "cpu" else result

    def _copied(self, source: Any, non_blocking: bool) -> Tensor:
        if isinstance(source, OnGpu):
            return source
        if isinstance(source, Pinned) and non_blocking:
            self.sent += 1
        else:
            self.waits.append("to")
        return source.clone().as_subclass(OnGpu)

    def _note(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        if name in _READS or name in _COUNTED:
            self.waits.append(name)
        elif name in ("__getitem__", "__setitem__"):
            self.waits += [name for index in _arrays_and_lists(args[1]) if _is_moved_or_counted(index)]
            if name == "__setitem__" and isinstance(args[2], Tensor) and not isinstance(args[2], OnGpu):
                self.waits.append("copy")
        else:
            mixed = [item for item in _tensors((args, named)) if not isinstance(item, OnGpu) and item.dim() > 0]
            assert not mixed, f"{name} over tensors of both devices"


def on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnGpu)


def _is_moved_or_counted(index: Any) -> bool:
    return not isinstance(index, OnGpu) or index.dtype is torch.bool


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _arrays_and_lists(index: Any) -> Iterator[Any]:
    parts = index if isinstance(index, tuple) else (index,)
    yield from (part for part in parts if isinstance(part, Tensor | list | np.ndarray))
