"""The processes that MPI knows, which must be those that the launcher started and the engine has ranks for.

MPI is started once in a process, by mpi4py, which TensorRT-LLM brings and uses too. So this is for the processes that
open an executor, or wait for ones that do.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from trtspec.errors import ConfigError, MissingDependency, TrtspecError
from trtspec.executors.tensorrt_llm.failures import first_line
from trtspec.ranks import Ranks

_POLL_SECONDS = 0.02
"""MPI waits with a busy processor; we do not."""


@dataclass(frozen=True, slots=True)
class World:
    """All ranks of one launch. Messages are plain values."""

    ranks: Ranks
    _comm: Any

    def send(self, value: object, rank: int) -> None:
        self._comm.send(value, dest=rank)

    def receive(self, rank: int) -> Any:
        """The next message of a rank, whenever it comes."""
        while not self.has_mail(rank):
            time.sleep(_POLL_SECONDS)
        return self._comm.recv(source=rank)

    def has_mail(self, rank: int) -> bool:
        return bool(self._comm.iprobe(source=rank))

    def abort(self, code: int) -> NoReturn:
        """End all ranks: a process that only ended itself would wait for the others in MPI's own ending."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(code)
        os._exit(code)  # MPICH's may return before the launcher acts


def join(told: Ranks) -> World:
    """Start MPI in this process. Refuses a world that is not the launcher's."""
    mpi = _mpi()
    comm = mpi.COMM_WORLD
    found = Ranks(comm.Get_rank(), comm.Get_size())
    if (found.rank, found.size) != (told.rank, told.size):
        library = mpi.Get_library_version().split(",")[0].split("\n")[0].strip()
        raise ConfigError(
            f"the launcher made this process {told} and for MPI it is {found}: mpi4py uses {library}, which this "
            "launcher does not belong to; launch with the mpirun of that MPI (`srun` with its plug-in, --mpi), or "
            "install mpi4py for the one that launched"
        )
    return World(told, comm)


def all_or_none(world: World, work: Callable[[], int]) -> int:
    """Run a rank's part. Where it fails, that is told, and all ranks end."""
    try:
        return work()
    except Exception as error:
        if not isinstance(error, (TrtspecError, RuntimeError)):
            traceback.print_exc()
        print(f"{world.ranks}: error: {first_line(str(error))}", file=sys.stderr)
        world.abort(1)


def _mpi() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError where it finds no MPI library
        raise MissingDependency(
            f"ranks find each other through mpi4py, which cannot be imported ({error}); pip install "
            "'trtspec[tensorrt-llm]', or mpi4py beside the MPI of the launcher"
        ) from error
