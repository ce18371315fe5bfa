"""The process that compiles one rank: what it sees of this machine, how it ends, and what is told of its failure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.executors.tensorrt_llm.probe import visible_devices
from trtspec.ranks import Ranks, alone

_POLL_SECONDS = 0.1
_LAST_LINES = 5


class CompileError(TrtspecError):
    """TensorRT-LLM stopped, or made another engine than was planned."""


def run_rank(job: Path, ranks: Ranks, stop: Callable[[], bool]) -> None:
    """Compile a rank to its end, or until it is to stop. Raises `CompileError` with its last words."""
    command = [sys.executable, "-m", "builders.tensorrt_llm.rank", str(job), str(ranks.rank)]
    log = job.with_name(f"rank{ranks.rank}.log")
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment(ranks)
        ) as process,
    ):
        try:
            while process.poll() is None and not stop():
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
            code = process.poll()
        finally:
            process.kill()
    if code:
        told = "\n  ".join(log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise CompileError(f"{ranks} stopped with exit code {code}:\n  {told}")


def environment(ranks: Ranks) -> dict[str, str]:
    """A rank is compiled alone, on a GPU of its own where there are several."""
    result = alone()
    devices = visible_devices()
    if len(devices) > 1:
        result["CUDA_VISIBLE_DEVICES"] = devices[ranks.place % len(devices)]
    return result
