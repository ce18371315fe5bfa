"""The parent's handle on a child process of ours: start it, talk to it, end it. It never restarts anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import TypeVar

import trtspec
from trtspec.errors import TrtspecError
from trtspec.executors.channel import Channel
from trtspec.executors.messages import Close, OpenFailed
from trtspec.openmp import considerate
from trtspec.ranks import launcher_files, of_child

CLOSE_GRACE_SECONDS = 5.0
"""Time for the running pass to end when the child is asked to stop; then it is killed."""
DEATH_GRACE_SECONDS = 1.0
"""Time for a child whose channel closed to finish dying, so that its exit code tells why."""

T = TypeVar("T")


class ChildLost(TrtspecError):
    """A child process died before it was open."""


class Child:
    """One process and its channel. Made by `start`."""

    def __init__(self, name: str, process: Process, channel: Channel) -> None:
        self.name = name
        self.process = process
        self.channel = channel

    @classmethod
    async def start(cls, name: str, module: str, first: object) -> Child:
        """Run a module with its end of a socket pair as argument, and send it a first message."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            variables = environment()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(theirs.fileno())),
                pass_fds=[theirs.fileno(), *launcher_files(variables)],
                env=variables,
            )
            undo.callback(_kill, process)
            channel = await Channel.over(ours)
            undo.pop_all()
        channel.send(first)
        return cls(name, process, channel)

    async def opened(self, kind: type[T]) -> T:
        """Wait for the message that it is open. Raises what it could not be opened for, `ChildLost` if it died."""
        match await self.channel.receive():
            case kind() as message:
                return message
            case OpenFailed(error):
                raise error
            case _:
                await self.end(DEATH_GRACE_SECONDS)
                raise ChildLost(f"{self.name} died while it opened ({self.fate})")

    @property
    def fate(self) -> str:
        """How the process ended, in words."""
        code = self.process.returncode
        if code is None:
            return "it still runs"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    async def end(self, grace: float = CLOSE_GRACE_SECONDS) -> None:
        """Ask it to stop, kill it after the grace, and close the channel. Safe to repeat."""
        self.channel.send(Close())
        try:
            await asyncio.wait_for(self.process.wait(), grace)
        except asyncio.TimeoutError:
            _kill(self.process)
            await self.process.wait()
        await self.channel.close()


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def environment() -> dict[str, str]:
    """The child imports the same trtspec as its parent and, from Python 3.11 on, nothing from the current folder."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # An empty entry would mean the current folder.
    path = [str(Path(trtspec.__file__).parents[1]), *(entry for entry in inherited if entry)]
    return {**considerate(of_child()), "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
