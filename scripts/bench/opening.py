"""How long an engine takes from start to SERVING, what its first token costs, and how much memory its process takes.

    python scripts/bench/opening.py ENGINE... --output scripts/bench/opening.md

The engine runs in its worker process, as a server runs it. Peak memory is the process's own (VmHWM) after a prompt of
1,000 tokens and eight requests in flight; an idle process has imported PyTorch and OpenVINO and done nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.bench.peers.machine import cpu_name
from trtspec import manifest
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.executors.embedded.weights import NAME as WEIGHTS
from trtspec.types import Request, StepOutput

MEBIBYTE = 1 << 20
KV_CACHE_MIB = 256
PROMPT = 1000
IN_FLIGHT = 8


class Reading(NamedTuple):
    name: str
    opening_seconds: float
    first_token_seconds: float
    weights_mib: float
    peak_mib: float


def status_mib(pid: int, key: str) -> float:
    """A memory figure of a process, from the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":")) / 1024


def idle_mib() -> float:
    """Peak memory of a process that only imports what a worker imports."""
    code = "import torch, openvino, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        peak = status_mib(process.pid, "VmHWM")
        process.stdin.close()
    return peak


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def run(executor: Executor, request: Request) -> float:
    """Seconds to the first token; the request runs to its end."""
    start, first = time.perf_counter(), 0.0
    async for event in executor.generate(request):
        if isinstance(event, StepOutput) and not first:
            first = time.perf_counter() - start
    return first


async def read(directory: Path) -> Reading:
    found = manifest.read(directory)
    before = set(children(os.getpid()))
    start = time.perf_counter()
    executor = await open_executor(directory, EngineOptions(kv_cache_mib=KV_CACHE_MIB))
    opening = time.perf_counter() - start
    (worker,) = set(children(os.getpid())) - before
    try:
        # Other tokens each time: an equal prompt would be found in the prefix cache.
        prompts = [tuple((7 * i + shift) % 1000 + 3 for i in range(PROMPT)) for shift in range(3)]
        firsts = [await run(executor, Request(f"long-{i}", prompt, 1)) for i, prompt in enumerate(prompts)]
        batch = (Request(str(i), (i + 3,) * 16, 16, max_draft_tokens=0) for i in range(IN_FLIGHT))
        await asyncio.gather(*(run(executor, request) for request in batch))
        peak = status_mib(worker, "VmHWM")
    finally:
        await executor.aclose()
    form = found.dtype if found.quantization == "none" else found.quantization
    weights = found.artifacts[WEIGHTS].bytes / MEBIBYTE
    return Reading(f"{found.runner} {form}", opening, statistics.median(firsts), weights, peak)


def report(readings: Sequence[Reading], idle: float) -> list[str]:
    rows = [
        f"| {item.name} | {item.opening_seconds:.1f} | {item.first_token_seconds:.2f} | {item.weights_mib:.0f} | "
        f"{item.peak_mib:.0f} | {(item.peak_mib - idle - KV_CACHE_MIB) / item.weights_mib:.2f} |"
        for item in readings
    ]
    return [
        f"| engine | opening, s | first token of {PROMPT}, s | weights, MiB | peak, MiB | (peak - idle - KV) "
        "/ weights |",
        "|---|---:|---:|---:|---:|---:|",
        *rows,
        "",
        f"{cpu_name()}; an idle process takes {idle:.0f} MiB; a KV cache of {KV_CACHE_MIB} MiB at most.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", type=Path, metavar="ENGINE", help="engine folders")
    parser.add_argument("--output", type=Path, help="write the report to a file too")
    options = parser.parse_args()
    readings = [asyncio.run(read(path)) for path in options.engines]
    lines = report(readings, idle_mib())
    print(*lines, sep="\n")
    if options.output:
        options.output.write_text("# Opening an engine\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
