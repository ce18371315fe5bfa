"""The parent's handle on a worker process: start it, talk to it, end it. It never restarts anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import Process
from pathlib import Path

import trtspec
from trtspec.errors import EngineLost
from trtspec.executors.messages import HEADER, Close, Command, Open, OpenFailed, Ready, pack, unpack
from trtspec.openmp import considerate

CLOSE_GRACE_SECONDS = 5.0
"""Time for the running pass to end when the child is asked to stop; then it is killed."""
DEATH_GRACE_SECONDS = 1.0
"""Time for a child whose channel closed to finish dying, so that its exit code tells why."""


class Child:
    """One worker process and its channel. Made by `start`."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, command: Open) -> Child:
        """Start a process and ask it to open an engine."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            arguments = ("-m", "trtspec.executors.worker", str(theirs.fileno()))
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, pass_fds=[theirs.fileno()], env=_environment()
            )
            undo.callback(_kill, process)
            reader, writer = await asyncio.open_connection(sock=ours)
            undo.pop_all()
        child = cls(process, reader, writer)
        child.send(command)
        return child

    async def ready(self) -> Ready:
        """Wait until its engine is warm. Raises what it could not be opened for, `EngineLost` if the child died."""
        match await self.receive():
            case Ready() as message:
                return message
            case OpenFailed(error):
                raise error
            case _:
                await self.end(DEATH_GRACE_SECONDS)
                raise EngineLost(f"the engine's process died while it opened ({self.fate})")

    @property
    def fate(self) -> str:
        """How the process ended, in words."""
        code = self.process.returncode
        if code is None:
            return "it still runs"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def send(self, command: Command | Open) -> None:
        """Hand over a command; to a dead child nothing needs to be said."""
        if not self._writer.is_closing():
            self._writer.write(pack(command))

    async def receive(self) -> object | None:
        """The next message; None once the child is gone."""
        try:
            header = await self._reader.readexactly(HEADER.size)
            return unpack(await self._reader.readexactly(HEADER.unpack(header)[0]))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def end(self, grace: float = CLOSE_GRACE_SECONDS) -> None:
        """Ask it to stop, kill it after the grace, and close the channel. Safe to repeat."""
        self.send(Close())
        try:
            await asyncio.wait_for(self.process.wait(), grace)
        except asyncio.TimeoutError:
            _kill(self.process)
            await self.process.wait()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _environment() -> dict[str, str]:
    """The child imports the same trtspec as its parent and, from Python 3.11 on, nothing from the current folder."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # An empty entry would mean the current folder.
    path = [str(Path(trtspec.__file__).parents[1]), *(entry for entry in inherited if entry)]
    return {**considerate(os.environ), "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
