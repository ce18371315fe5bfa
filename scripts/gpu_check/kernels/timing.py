"""How long calls take: on a device by its own events, on a CPU by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]
FEWEST = 5
"""Repeats that a median is taken of, whatever they take."""


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
        times = _repeated(lambda: _replayed(graph), seconds)
        return statistics.median(times) / len(calls)


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


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _timed(calls: Sequence[Call]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - begin
