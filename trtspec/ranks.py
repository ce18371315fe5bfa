"""Which rank of how many a launcher made this process: `mpirun`, `srun` and others say it in the environment.

Nothing is imported for it, because MPI may be started once in a process, and then by who needs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's, and srun --mpi=pmi2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process of a job."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Rank 0 answers requests; the others only compute."""
        return self.rank == 0


def launched(environment: Mapping[str, str] = os.environ) -> Ranks:
    """This process's place; rank 0 of 1 where nobody launched it."""
    for rank, size in _LAUNCHERS:
        if rank in environment and size in environment:
            return Ranks(int(environment[rank]), int(environment[size]))
    return Ranks()
