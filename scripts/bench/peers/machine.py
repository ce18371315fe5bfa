"""What machine this is: processor, cores, and how fast memory is copied and read."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trtspec.cpu import CPUINFO, cpu_flags

BUFFER_BYTES = 512 * 2**20
"""Far beyond any cache."""
_RUNS = 7
_TELLING_FLAGS = ("avx2", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "bf16", "asimd")


@dataclass(frozen=True, slots=True)
class Machine:
    processor: str
    cores: int
    """Those this process may use."""
    flags: list[str]
    """Instruction sets that matter here."""
    memory_gib: float
    copy_gb_per_s: float
    """Bytes read plus bytes written."""
    read_gb_per_s: float
    system: str


def describe() -> Machine:
    """Look at and measure this machine."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    source, target = (torch.ones(BUFFER_BYTES // 4) for _ in range(2))
    return Machine(
        processor=_processor(),
        cores=cores,
        flags=_flags(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        copy_gb_per_s=round(2 * BUFFER_BYTES / _best(lambda: target.copy_(source)) / 1e9, 1),
        read_gb_per_s=round(BUFFER_BYTES / _best(source.sum) / 1e9, 1),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    )


def cpu_name() -> str:
    """The processor and its telling instructions in a line."""
    return f"{_processor()} with {', '.join(_flags())}"


def _flags() -> list[str]:
    found = cpu_flags()
    return [flag for flag in _TELLING_FLAGS if flag in found]


def _best(action: Callable[[], object]) -> float:
    """Seconds of the fastest run: other work only ever adds."""
    times = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def _processor(cpuinfo: Path = CPUINFO) -> str:
    """Name, family and model, because virtual machines often hide the name."""
    facts: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    name = facts.get("model name", platform.machine())
    return f"{name} (family {facts.get('cpu family', 'unknown')}, model {facts.get('model', 'unknown')})"
