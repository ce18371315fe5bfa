"""The ranks of an engine: rank 0 computes all of it here, and the others only take part in its beginning and end."""

from __future__ import annotations

import time
from typing import Any

from tensorrt_llm._double.errors import assertion, check

_POLL_SECONDS = 0.01
_SIZE = (
    "With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp*cp when participantIds are not "
    "specified"
)
_LEADER = "With LEADER communication mode, only leader rank is expected to call {}"


class World:
    """An engine's place among the processes of MPI."""

    def __init__(self, ranks: int) -> None:
        self._comm: Any = None
        if ranks > 1:
            from mpi4py import MPI

            self._comm = MPI.COMM_WORLD
            check(self._comm.Get_size() == ranks, _SIZE)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def rank(self) -> int:
        return 0 if self._comm is None else int(self._comm.Get_rank())

    def meet(self) -> None:
        """Wait for all ranks: upstream's exchange of addresses, and its marker of the end."""
        if self._comm is not None:
            met = self._comm.Ibarrier()
            while not met.Test():
                time.sleep(_POLL_SECONDS)

    def only_leader(self, what: str) -> None:
        if not self.leads:
            raise RuntimeError(assertion(_LEADER.format(what)))
