"""Which rank of how many a launcher made this process: `mpirun`, `srun` and others say it in the environment.

Nothing is imported for it, because MPI may be started once in a process, and then by who needs it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's, and srun --mpi=pmi2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)
_ON_NODE = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_OF_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_", "MPICH_", "UCX_", "SLURM_")
_LAUNCHER_FILES = ("PMI_FD",)
"""Open files by which MPICH and srun are reached, by number; Open MPI's mpirun is reached by an address."""
_ABORT = b"cmd=abort exitcode=1\n"
"""Of the protocol that is spoken over them (PMI)."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process of a job."""

    rank: int = 0
    size: int = 1
    on_node: int | None = None
    """Its rank among those of its machine, where the launcher tells."""

    @property
    def leads(self) -> bool:
        """Rank 0 answers requests; the others only compute."""
        return self.rank == 0

    @property
    def place(self) -> int:
        """What chooses among the GPUs of its machine."""
        return self.rank if self.on_node is None else self.on_node

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


def launched(environment: Mapping[str, str] = os.environ) -> Ranks:
    """This process's place; rank 0 of 1 where nobody launched it."""
    for rank, size in _LAUNCHERS:
        if rank in environment and size in environment:
            on_node = next((int(environment[name]) for name in _ON_NODE if name in environment), None)
            return Ranks(int(environment[rank]), int(environment[size]), on_node)
    return Ranks()


def alone(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child that starts MPI for itself, and takes nobody's rank."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_LAUNCHERS)}


def of_child(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """The environment of a child that opens an engine in this process's place: with its rank among several.

    A rank of one is left out: MPI gives it to a process once, and a child may have to be started again.
    """
    is_launched = any(rank in environment for rank, _ in _LAUNCHERS)
    return alone(environment) if is_launched and launched(environment).size == 1 else environment


def launcher_files(environment: Mapping[str, str] = os.environ) -> Iterator[int]:
    """Open files that a child needs to start MPI in its parent's place."""
    for name in _LAUNCHER_FILES:
        if environment.get(name, "").isdecimal() and os.path.exists(f"/proc/self/fd/{environment[name]}"):
            yield int(environment[name])


def end_all(environment: Mapping[str, str] = os.environ) -> None:
    """Have the launcher end all ranks when this one ends with an error.

    Open MPI does so for any error. MPICH does not where a rank ends before it started MPI, and the others would wait.
    """
    for file in launcher_files(environment):
        with contextlib.suppress(OSError):  # the launcher knows already
            os.write(file, _ABORT)
