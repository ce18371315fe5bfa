"""What a pass costs on each runner: batch, context and draft tree, over engine folders of one model, in one run.

    python scripts/bench/runners.py ENGINE... --output scripts/bench/runners.md

Engines take turns within every row of the table, so that what disturbs the machine disturbs all. Rates count the
weights that a pass reads once; the last line is this machine's measured copy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from scripts.bench.peers.machine import cpu_name
from trtspec import manifest
from trtspec.decoding.draft import Draft
from trtspec.decoding.plan import PlanRow, Runner, StepPlan
from trtspec.executors.embedded import decoder_config, weights
from trtspec.executors.embedded.decoder_config import DecoderConfig
from trtspec.executors.embedded.runners import Shape, runner_kind
from trtspec.types import Request

POSITIONS = 8192
SLOTS = 4 * POSITIONS


class Case(NamedTuple):
    """One shape of a pass."""

    name: str
    batch: int
    context: int
    nodes: int = 0
    fed: int = 1


CASES = (
    *(Case(f"batch {batch}", batch, 64) for batch in (1, 2, 4, 8, 16)),
    *(Case(f"tree of {nodes} nodes", 1, 64, nodes) for nodes in (3, 8, 15, 31, 64)),
    Case("batch 8, trees of 3", 8, 64, 3),
    *(Case(f"context {context}", 1, context) for context in (256, 1000, 4000, 8000)),
    Case("prompt of 256", 1, 0, fed=256),
)


class Engine(NamedTuple):
    """A runner and what is known of it."""

    name: str
    runner: Runner
    block_tokens: int
    weight_bytes: int
    load_seconds: float


def open_engine(directory: Path, threads: int) -> Engine:
    """Only the runner: no scheduler, no proposer."""
    start = time.perf_counter()
    found, config = manifest.read(directory), DecoderConfig.from_json(directory / decoder_config.NAME)
    kind = runner_kind(found.runner)
    block_tokens = kind.block_tokens(0)
    shape = Shape(
        config=config,
        dtype=weights.DTYPES[found.dtype],
        device=torch.device("cpu"),
        positions=POSITIONS,
        vocabulary_size=found.vocabulary_size,
        block_tokens=block_tokens,
        blocks=SLOTS // block_tokens,
        threads=threads,
    )
    runner = kind.create(shape, weights.load_weights(directory, config)).runner
    form = found.dtype if found.quantization == "none" else found.quantization
    seconds = time.perf_counter() - start
    return Engine(f"{found.runner} {form}", runner, block_tokens, found.artifacts[weights.NAME].bytes, seconds)


def plan(case: Case, block_tokens: int) -> tuple[StepPlan, Draft]:
    """Rows with tables of their own; drafts are binary trees."""
    share = SLOTS // block_tokens // max(case.batch, 4)
    rows = tuple(
        PlanRow(
            sequence_id=index,
            request=Request(str(index), (5,), 1),
            history=[5 + index] * (case.context + case.fed),
            start=case.context,
            fed=case.fed,
            samples=True,
            prefill=case.fed > 1,
            max_depth=case.nodes,
            max_nodes=case.nodes,
            blocks=tuple(range(index * share, (index + 1) * share)),
            choice=0,
            scored=1,
        )
        for index in range(case.batch)
    )
    tree = (range(7, 7 + case.nodes), [(node - 2) // 2 if node > 1 else -1 for node in range(case.nodes)])
    return StepPlan(0, rows), Draft.trees([tree] * case.batch)


def measure(case: Case, engines: Sequence[Engine], repeats: int) -> list[float]:
    """Median milliseconds of each engine; its first two passes of a shape do not count."""
    plans = [plan(case, engine.block_tokens) for engine in engines]
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(repeats + 2):
        for engine, (step, draft), taken in zip(engines, plans, times, strict=True):
            start = time.perf_counter()
            engine.runner.forward(step, draft)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[2:]) * 1e3 for taken in times]


def copied_bytes_per_second(threads: int) -> float:
    """Bytes read by a copy, per second; a copy writes as many."""
    source = torch.ones(128 << 20)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", type=Path, metavar="ENGINE", help="engine folders")
    parser.add_argument("--output", type=Path, help="write the report to a file too")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    engines = [open_engine(path, threads) for path in options.engines]
    lines = [
        f"| ms a pass | {' | '.join(engine.name for engine in engines)} |",
        f"|---|{'---:|' * len(engines)}",
        f"| opening, s | {' | '.join(f'{engine.load_seconds:.1f}' for engine in engines)} |",
    ]
    print(*lines, sep="\n", flush=True)
    for case in CASES:
        medians = measure(case, engines, options.repeats)
        lines.append(f"| {case.name} | {' | '.join(f'{median:.1f}' for median in medians)} |")
        print(lines[-1], flush=True)
        if case == CASES[0]:
            rates = (engine.weight_bytes / median / 1e6 for engine, median in zip(engines, medians, strict=True))
            lines.append(f"| weights read, GB/s | {' | '.join(f'{rate:.1f}' for rate in rates)} |")
            print(lines[-1], flush=True)
    notes = f"{cpu_name()}, {threads} threads, PyTorch {torch.__version__}; a copy moves "
    notes += f"{copied_bytes_per_second(threads) / 1e9:.1f} GB/s (read and written)."
    print(notes)
    if options.output:
        options.output.write_text("# What a pass costs\n\n" + "\n".join(lines) + f"\n\n{notes}\n")


if __name__ == "__main__":
    main()
