"""The engine's side of the process that tries guides: started with the first one, and again whenever one ended it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys

from trtspec.errors import EngineFault
from trtspec.executors.child import environment
from trtspec.executors.guides.trials import CPU_SECONDS, Begin, Tried, too_costly
from trtspec.executors.messages import pack, receive
from trtspec.guides import Guide

_MODULE = "trtspec.executors.guides.rehearsal"
_WALL_SECONDS = 120.0
"""For what waits instead of computing; a busy machine must not make a guide look too complex."""


class Rehearsal:
    """One such process. For one thread at a time, but for `close`."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._closed = False

    def check(self, guide: Guide) -> None:
        """Raises `InvalidField` for a guide that makes no sense or costs too much."""
        tried = self._ask(guide)
        if tried is None:
            raise too_costly(guide, self._end())
        if tried.error is not None:
            raise tried.error

    def close(self) -> None:
        """End the process, whatever it does; who waits for it is told that it died."""
        self._closed = True
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """After `close`, when nobody asks any more: leave nothing behind."""
        if self._process is not None:
            self._end()

    def _ask(self, guide: Guide) -> Tried | None:
        """None where the process died of it."""
        if self._process is None:
            self._start()
        assert self._channel is not None
        with contextlib.suppress(OSError):
            self._channel.sendall(pack(guide))
        answer = receive(self._channel)
        return answer if isinstance(answer, Tried) else None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_WALL_SECONDS)
        with theirs:
            command = (sys.executable, "-m", _MODULE, str(theirs.fileno()))
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment())
        self._channel = ours
        if self._closed:
            self._process.kill()
        with contextlib.suppress(OSError):
            ours.sendall(pack(self._begin))
        if not isinstance(receive(ours), Tried):
            raise EngineFault(
                f"the process that tries guides does not start ({self._end()}); the server's log says why"
            )

    def _end(self) -> str:
        """Make sure that the process is gone; says how it went."""
        assert self._process is not None and self._channel is not None
        self._channel.close()
        running = self._process.poll() is None
        if running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._process.kill()
        code = self._process.wait()
        self._process, self._channel = None, None
        if code == -signal.SIGPROF:
            return f"more than {CPU_SECONDS:.0f} s to compile"
        return f"more than the compiler can bear (exit code {code})"
