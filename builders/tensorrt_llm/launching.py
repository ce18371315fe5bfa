"""A build by processes that a launcher started, one for each rank: `mpirun -n 2 python -m builders.build --tp 2`.

Rank 0 builds as if it were alone, and prints; of the others each compiles its own rank when it is asked to. They meet
in the folder that is being built, which is on one machine or on a file system that all of them share.
"""

from __future__ import annotations

import argparse
import atexit
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from builders.tensorrt_llm.asked import Asked
from builders.tensorrt_llm.rank_process import CompileError, run_rank
from trtspec.capabilities import ENGINE
from trtspec.errors import ConfigError, TrtspecError
from trtspec.executors.tensorrt_llm.world import World, all_or_none, join
from trtspec.ranks import Ranks, end_all
from trtspec.stop_signals import leave_to_others

_POLL_SECONDS = 0.05
Outcome = str | None
"""Of a rank that was asked to compile: what went wrong."""


def check_alone(ranks: Ranks) -> None:
    """Refuse a launcher for engines of one process."""
    if ranks.size > 1:
        raise ConfigError(
            f"{ranks.size} processes were launched and --backend embedded builds engines of one; build without a "
            "launcher"
        )


def check_launch(asked: Asked, flow: str, ranks: Ranks) -> None:
    """Refuse processes that would have nothing to compile, or more than one rank."""
    if ranks.size == 1:
        return
    command = "python -m builders.build ..."
    if flow != ENGINE:
        raise ConfigError(
            f"{ranks.size} processes were launched and --flow {flow} compiles nothing; build with `{command}` alone"
        )
    size = asked.tp * asked.pp
    if ranks.size != size:
        fitting = f"mpirun -n {size} {command}" if size > 1 else command
        raise ConfigError(
            f"{ranks.size} processes were launched and --tp {asked.tp} --pp {asked.pp} makes {size} ranks, each of "
            f"which one process compiles; build with `{fitting}`"
        )
    if asked.workers > 1:
        raise ConfigError(
            f"--workers is {asked.workers} and {ranks.size} processes were launched, which compile a rank each; leave "
            "it out"
        )


def build_launched(
    options: argparse.Namespace, ranks: Ranks, fits: Callable[[], bool], build: Callable[[], int]
) -> int:
    """This process's part of the build; returns its exit code, which is that of all.

    `fits` tells whether so many processes can build what the flags ask for; rank 0 says why not when it builds.
    """
    if ranks.size == 1:
        return build()
    if options.dry_run or not fits():
        return build() if ranks.leads else 0
    if ranks.leads:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a launcher's: what was begun is removed
    else:
        leave_to_others()
    atexit.register(end_all)
    try:
        world = join(ranks)
    except TrtspecError as error:
        print(f"{ranks}: error: {error}", file=sys.stderr)
        return 2
    code = all_or_none(world, lambda: _lead(world, build) if ranks.leads else follow(world))
    atexit.unregister(end_all)
    return code


def _lead(world: World, build: Callable[[], int]) -> int:
    code = build()
    for rank in range(1, world.ranks.size):
        world.send(code, rank)
    return code


def follow(world: World) -> int:
    """Compile what rank 0 asks for, quietly, until it tells how the build ended."""
    while not isinstance(message := world.receive(0), int):
        if message is not None:
            world.send(_outcome(Path(message), world), 0)
    return message


def _outcome(job: Path, world: World) -> Outcome:
    try:
        run_rank(job, world.ranks, stop=lambda: world.has_mail(0))
    except CompileError as error:
        return str(error)
    except OSError as error:
        return f"{world.ranks} cannot use the folder of rank 0: {error}; give an --output that all machines share"
    return None


def compile_together(job: Path, world: World) -> None:
    """Compile all ranks, one in each process. Where one fails the others stop, and only then that is told."""
    others = range(1, world.ranks.size)
    outcomes: dict[int, Outcome] = {}

    def failed() -> bool:
        for rank in others:
            if rank not in outcomes and world.has_mail(rank):
                outcomes[rank] = world.receive(rank)
        return any(outcomes.values())

    for rank in others:
        world.send(str(job), rank)
    try:
        run_rank(job, world.ranks, stop=failed)
        while len(outcomes) < len(others) and not failed():
            time.sleep(_POLL_SECONDS)
        if error := next(filter(None, outcomes.values()), None):
            raise CompileError(error)
    finally:
        for rank in [rank for rank in others if rank not in outcomes]:
            world.send(None, rank)
            world.receive(rank)
