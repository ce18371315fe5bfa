"""How long calls take: on a device by its own events, on a CPU by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Call = Callable[[], object]
FEWEST = 5
"""Repeats that a median is taken of, whatever they take."""
_FEWEST_CYCLES, _MOST_CYCLES = 1 << 18, 1 << 30
"""Of the device's clock that it is kept waiting for the host: some 0.1 ms at first, and half a second at most."""


class Timer(Protocol):
    """Seconds that one of some calls takes: the median over repeats of all of them, within about so many seconds."""

    def __call__(self, calls: Sequence[Call], seconds: float) -> float: ...


class GraphTimer:
    """All calls are recorded in one CUDA graph, which is replayed, so that the host's share is not measured.

    An engine, too, queues its kernels from compiled code. Between two kernels of a graph the device's own gap remains.
    """

    def __call__(self, calls: Sequence[Call], seconds: float) -> float:
        for call in calls[:2]:  # what is compiled, tuned or allocated first is not recorded
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        times = _repeated(_Replayed(graph), seconds)
        return statistics.median(times) / len(calls)


@dataclass
class _Replayed:
    """Seconds of the device for one replay, between two events.

    An idle device would time the first event at once and then wait for the host to launch the graph. So it is kept
    waiting until all is queued; where it was done with that earlier, it waits longer and the replay is timed again.
    """

    graph: torch.cuda.CUDAGraph
    cycles: int = _FEWEST_CYCLES

    def __call__(self) -> float:
        while True:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self.cycles)
            begin.record()
            self.graph.replay()
            end.record()
            was_idle = begin.query()
            end.synchronize()
            if not was_idle:
                return float(begin.elapsed_time(end)) / 1000
            if self.cycles >= _MOST_CYCLES:
                raise RuntimeError(f"launches are not queued ahead of the device: it waits {self.cycles:,} cycles long")
            self.cycles *= 2


class HostTimer:
    """For a CPU, where calls return when they are done."""

    def __call__(self, calls: Sequence[Call], seconds: float) -> float:
        calls[0]()
        return statistics.median(_repeated(lambda: _timed(calls), seconds)) / len(calls)


def _repeated(measure: Callable[[], float], seconds: float) -> list[float]:
    end, times = time.monotonic() + seconds, [measure()]
    while len(times) < FEWEST or time.monotonic() < end:
        times.append(measure())
    return times


def _timed(calls: Sequence[Call]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begin
