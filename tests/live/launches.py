"""Real launches: `mpirun` and what it started, told apart from all else by a mark in their environment."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_MARK = "TRTSPEC_TEST_LAUNCH"
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SECONDS = 90


def missing() -> str | None:
    """Why nothing can be launched here."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    return "no mpirun is installed" if mpirun() is None else None


def mpirun() -> str | None:
    """That of this environment, or else any."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.is_file() else shutil.which("mpirun")


class Launch:
    """`mpirun -n 2 python -m ...`, and its output in two files."""

    def __init__(self, folder: Path, *arguments: str | Path, **environment: str) -> None:
        self._mark = uuid.uuid4().hex
        self._files = folder / f"{self._mark}.out", folder / f"{self._mark}.err"
        told = {
            **{"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            **{"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", _MARK: self._mark},
        }
        command = [str(mpirun()), "-n", "2", sys.executable, "-m", *map(str, arguments)]
        with self._files[0].open("w") as out, self._files[1].open("w") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **told, **environment}
            )

    @property
    def out(self) -> str:
        return self._files[0].read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._files[1].read_text(errors="replace")

    def address(self) -> str:
        """Where it answers, once it does."""
        until = time.monotonic() + _SECONDS
        while not (found := [line for line in self.out.splitlines() if line.startswith("SERVING ")]):
            assert self._process.poll() is None and time.monotonic() < until, self.out + self.err
            time.sleep(0.05)
        return found[0].split()[1]

    def signal(self, number: signal.Signals) -> None:
        """To the launcher."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """The launcher's exit code; nothing of the launch may be left."""
        code = self._process.wait(_SECONDS)
        until = time.monotonic() + 10
        while left := list(self.processes()):
            assert time.monotonic() < until, f"{left} outlived the launch"
            time.sleep(0.05)
        return code

    def close(self) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def processes(self, rank: int | None = None, module: str = "") -> Iterator[int]:
        """Those of the launch; of one rank, or those that run a module."""
        wanted = {f"{name}={rank}" for name in _RANKS}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_text(errors="replace").split("\0")
                ours = f"{_MARK}={self._mark}" in environment and int(folder.name) != self._process.pid
                runs = module in (folder / "cmdline").read_text(errors="replace").split("\0") if module else True
                if ours and runs and (rank is None or wanted & set(environment)):
                    yield int(folder.name)
