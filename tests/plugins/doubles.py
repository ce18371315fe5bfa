"""What stands for a GPU in tests of gpu-check: a timer, a driver, and kernels that were never compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from plugins.aot import CompiledKernel
from scripts.gpu_check.kernels import ahead
from scripts.gpu_check.kernels.driver import Function
from scripts.gpu_check.kernels.launches import Launch
from scripts.gpu_check.kernels.timing import Call

Fault = Callable[[Launch, Sequence[int]], None]
"""What else a launch does, given the addresses of its outputs."""


class Clock:
    """Says what it is told to, call by call, and calls nothing."""

    def __init__(self, *answers: float | Exception) -> None:
        self._answers = iter(answers)

    def __call__(self, calls: Sequence[Call], seconds: float) -> float:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Doing:
    """A driver whose launches leave what the launcher left, and then do what they should not.

    It goes by the addresses that it is given: first come those of the inputs, last those of the outputs.
    """

    def __init__(self, launches: Sequence[Launch], fault: Fault | None = None) -> None:
        self.launches, self._fault = list(launches), fault

    def load(self, name: str, ptx: str) -> Function:
        return Function(name, 1, (), 32, 0)

    def launch(
        self, function: Function, grid: Any, block_x: int, shared: int, stream: int, arguments: Sequence[Any]
    ) -> None:
        known = self._known(function.name, [item.value for item in arguments])
        assert list(grid) == [known.sizes[axis] for axis in known.spec.grid]
        pointers = [item.value for item in arguments[-len(known.outputs) :]]
        for pointer, output in zip(pointers, known.outputs, strict=True):
            ctypes.memmove(pointer, output.data_ptr(), output.nbytes)
        if self._fault:
            self._fault(known, pointers)

    def _known(self, name: str, given: Sequence[int]) -> Launch:
        for item in self.launches:
            addresses = [tensor.data_ptr() for tensor in item.inputs]
            if item.spec.name == name and list(given[: len(addresses)]) == addresses:
                return item
        raise AssertionError(f"{name} has other inputs than any launch")


def without_compiler(launches: Sequence[Launch], variant: ahead.Variant) -> list[ahead.Loaded]:
    return [
        ahead.Loaded(item, variant, CompiledKernel(item.spec.name, "", 32, 0, "sm_90", "3.9", "")) for item in launches
    ]
