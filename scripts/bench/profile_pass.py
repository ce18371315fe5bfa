"""`python -m scripts.bench.profile_pass ENGINE`: where the time of our passes goes, at several loads.

The engine runs in its worker process as under the server, timed from outside (`profiled_worker`); this process is the
front that sends requests and reads what comes back. Prints Markdown: the mean of each phase per pass, and how fast a
pass reads the weights beside how fast this machine reads memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scripts.bench.peers import machine
from scripts.bench.peers.adapters.trtspec import Front, several
from scripts.bench.peers.jobs import Work
from scripts.bench.peers.report import table
from scripts.bench.peers.tokenizer import load_tokenizer
from scripts.bench.peers.workload import NEW_TOKENS, read_prompts
from scripts.bench.profiled_worker import FILE, FORWARD, PHASES, Profile
from trtspec import manifest
from trtspec.config import EngineOptions
from trtspec.errors import TrtspecError
from trtspec.executors import open_executor

WORKER, PROFILED = "trtspec.executors.worker", "scripts.bench.profiled_worker"
LOADS = (1, 8, 16)


@dataclass(frozen=True, slots=True)
class Load:
    """One run."""

    concurrency: int
    tokens: int
    profile: Profile


async def run(engine: Path, work: Work, eos_ids: Sequence[int], concurrency: int, *, speculation: bool) -> Load:
    """Send the work to a fresh worker, and return what its timers say once it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        with patch.dict(os.environ, {FILE: str(file)}), patch("asyncio.create_subprocess_exec", _profiled):
            executor = await open_executor(engine, EngineOptions())
        try:
            front = Front(executor, eos_ids, speculation=speculation)
            tokens = await several(front.one, work, concurrency)
        finally:
            await executor.aclose()
        return Load(concurrency, tokens, Profile(**json.loads(file.read_text())))


_exec = asyncio.create_subprocess_exec


async def _profiled(*command: str, **settings: Any) -> asyncio.subprocess.Process:
    """Start the timed worker in the worker's place."""
    return await _exec(*(PROFILED if part == WORKER else part for part in command), **settings)


def phases(loads: Sequence[Load]) -> str:
    """Milliseconds of each phase in the mean pass, and its share."""
    rows = [[name, *(_cell(load, load.profile.seconds[name]) for load in loads)] for name in PHASES]
    rows.append(["rest", *(_cell(load, rest(load.profile)) for load in loads)])
    rows.append(["whole", *(_cell(load, load.profile.span) for load in loads)])
    return table(["ms a pass", *(f"{load.concurrency} in flight" for load in loads)], rows)


def rest(profile: Profile) -> float:
    """What no phase accounts for: the loop itself and the commands it carries out."""
    return profile.span - sum(profile.seconds.values())


def _cell(load: Load, seconds: float) -> str:
    return f"{1000 * seconds / load.profile.passes:.3f} ({seconds / load.profile.span:.1%})"


def totals(loads: Sequence[Load], weight_bytes: int, here: machine.Machine) -> str:
    """What the passes achieved."""
    rates = [weight_bytes * load.profile.passes / load.profile.seconds[FORWARD] / 1e9 for load in loads]
    rows = [
        ["passes", *(str(load.profile.passes) for load in loads)],
        ["tokens a pass", *(f"{load.tokens / load.profile.passes:.2f}" for load in loads)],
        ["tokens per second", *(f"{load.tokens / load.profile.span:.1f}" for load in loads)],
        ["weights read, GB/s", *(f"{rate:.1f} ({rate / here.read_gb_per_s:.0%} of reading)" for rate in rates)],
    ]
    return table(["", *(f"{load.concurrency} in flight" for load in loads)], rows)


def weight_bytes(engine: Path) -> int:
    """Bytes of the weights, which every pass reads once."""
    artifacts = manifest.read(engine).artifacts
    return sum(item.bytes for name, item in artifacts.items() if name.endswith(".safetensors"))


def render(engine: Path, loads: Sequence[Load], here: machine.Machine, *, speculation: bool) -> str:
    what = manifest.read(engine)
    size = weight_bytes(engine)
    heading = f"## {what.model}, {what.runner} {what.dtype}, quantization {what.quantization}"
    note = (
        f"Speculation {'on' if speculation else 'off'}; {size / 1e6:.0f} MB of weights; {here.processor}, {here.cores} "
        f"cores, memory read {here.read_gb_per_s} GB/s, copied {here.copy_gb_per_s} GB/s (read and written)."
    )
    return "\n\n".join([heading, note, phases(loads), totals(loads, size, here)]) + "\n"


async def measure(options: argparse.Namespace) -> list[Load]:
    tokenizer = load_tokenizer(options.engine)
    work = Work([tokenizer.message(text) for text in read_prompts()], options.tokens)
    return [
        await run(options.engine, work, tokenizer.eos_ids, concurrency, speculation=options.speculation)
        for concurrency in options.concurrency
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.profile_pass", description="Profile our passes.")
    parser.add_argument("engine", type=Path, metavar="ENGINE", help="engine folder")
    parser.add_argument("--speculation", action="store_true", help="draft as the engine does by default")
    parser.add_argument("--tokens", type=int, default=NEW_TOKENS, metavar="N", help="most for each of 16 prompts")
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=list(LOADS), metavar="N", help="requests in flight"
    )
    options = parser.parse_args(argv)
    try:
        loads = asyncio.run(measure(options))
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(render(options.engine, loads, machine.describe(), speculation=options.speculation))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
