"""How fast the kernels read, beside a sweep that only reads, and beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch
import triton
from torch import Tensor

from scripts.gpu_check.checks import Check
from scripts.gpu_check.kernels.loads import Load, Pool
from scripts.gpu_check.kernels.operations import Operation
from scripts.gpu_check.kernels.sweep import sweep
from scripts.gpu_check.kernels.timing import Call, Timer

WANTED_SHARE = 0.8
LARGE_BYTES = 100_000_000
"""From here on a kernel has to reach the wanted share of what reading alone reaches."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One operation on one load."""

    operation: str
    load: Load
    reads: int
    seconds: float
    sweep_seconds: float
    swept_by: str
    torch_seconds: float | None
    """None where PyTorch could not."""
    torch_trouble: str = ""

    @property
    def share(self) -> float:
        """Of the speed of reading alone."""
        return self.sweep_seconds / self.seconds

    @property
    def large(self) -> bool:
        return self.reads >= LARGE_BYTES

    @property
    def met(self) -> bool:
        return self.share >= WANTED_SHARE


@dataclass(frozen=True, slots=True)
class Skipped:
    operation: str
    load: Load
    reason: str
    broken: bool = False
    """Not for want of time or memory: the kernels did not run."""


@dataclass(frozen=True, slots=True)
class Means:
    """What measures, for how long each time, and how much time is left for all."""

    timer: Timer
    seconds: float
    left: Callable[[], float]


@dataclass
class Sweeper:
    """The least that reading so many bytes takes, by the fastest of some kernels; the same number is measured once."""

    pool: Pool
    means: Means
    _known: dict[int, tuple[float, str]] = field(default_factory=dict)

    def seconds(self, count: int) -> tuple[float, str]:
        if count not in self._known:
            turns = [part.view(torch.int32) for (part,) in self.pool.turns([(count // self.pool.logits.itemsize,)])]
            times = {name: self._measured([partial(way, words) for words in turns]) for name, way in _WAYS.items()}
            best = min(times, key=lambda name: times[name])
            self._known[count] = (times[best], best)
        return self._known[count]

    def _measured(self, calls: Sequence[Call]) -> float:
        return self.means.timer(calls, self.means.seconds)


def _sweep(size: int, words: Tensor) -> Tensor:
    blocks = triton.cdiv(words.numel(), size)
    sums = torch.empty(blocks, dtype=torch.int32, device=words.device)
    sweep[(blocks,)](words, words.numel(), sums, BLOCK=size, num_warps=size // 512)
    return sums


def _sum(words: Tensor) -> Tensor:
    return words.view(torch.float32).sum()


_WAYS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Triton, blocks of 8 KiB": partial(_sweep, 2048),
    "Triton, blocks of 16 KiB": partial(_sweep, 4096),
    "torch.sum of float32": _sum,
}


def measure(
    loads: Sequence[Load], operations: Sequence[Operation], pool: Pool, means: Means
) -> Iterator[Speed | Skipped]:
    """Each operation on each load, the first loads first."""
    sweeper = Sweeper(pool, means)
    for load, operation in product(loads, operations):
        yield _one(operation, load, pool, means, sweeper)


def _one(operation: Operation, load: Load, pool: Pool, means: Means, sweeper: Sweeper) -> Speed | Skipped:
    if means.left() <= 0:
        return Skipped(operation.name, load, "no time was left")
    if (most := operation.bytes_read(load)) > pool.logits.nbytes:
        held = f"the pool that fits into the device's memory holds {pool.logits.nbytes:,}"
        return Skipped(operation.name, load, f"it reads {most:,} bytes; {held}")
    try:
        prepared = operation.prepare(load, pool)
        seconds = means.timer(prepared.kernel_calls(), means.seconds)
        swept, swept_by = sweeper.seconds(prepared.reads)
    except torch.OutOfMemoryError:
        return Skipped(operation.name, load, "the device's memory is too small")
    except Exception as error:  # of Triton, its compiler or the driver: other operations may do
        return Skipped(operation.name, load, f"{type(error).__name__}: {_first_line(error)}", broken=True)
    try:
        torch_seconds, trouble = means.timer(prepared.torch_calls, means.seconds), ""
    except RuntimeError as error:  # memory, or what cannot be recorded in a graph
        torch_seconds, trouble = None, _first_line(error)
    return Speed(operation.name, load, prepared.reads, seconds, swept, swept_by, torch_seconds, trouble)


def run_everywhere(measured: Sequence[Speed | Skipped]) -> Check:
    """Whether our own kernels ran wherever there was time and memory."""
    broken = [item for item in measured if isinstance(item, Skipped) and item.broken]
    told = [f"{item.operation}, {item.load}: {item.reason}" for item in broken[:1]]
    left_out = sum(isinstance(item, Skipped) for item in measured)
    detail = told[0] if told else f"{len(measured) - left_out} measured, {left_out} left out"
    return Check("kernels run on the loads that are measured", not broken, detail)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0][:80]
