"""Lines to a file from a thread of its own, so that a slow or full disk never holds an event loop.

Lines that cannot be written are dropped and counted. A file that was moved away, as logrotate does, is left, and made
anew under its name. Several processes may append to one file: each line is one write.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Full, Queue

from trtspec.errors import ConfigError

MOST_WAITING = 4096
"""Lines; beyond them the newest are dropped."""
CLOSE_SECONDS = 2.0
"""Time that what waits has to be written when the server ends."""
_MODE = 0o640
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
"""Opened by their numbers, for a service manager's may be sockets, which have no name to open."""

_log = logging.getLogger(__name__)


class LineWriter:
    """Opens the file, or raises `ConfigError` under the flag that named it, and starts the thread."""

    def __init__(self, path: Path, flag: str, dropped: Callable[[int], None]) -> None:
        self._path = path
        self._dropped = dropped
        self._lines: Queue[bytes | None] = Queue(MOST_WAITING)
        self._torn = False
        self._lost = 0
        """Since writing last worked."""
        try:
            self._file = _open(path)
        except OSError as error:
            raise ConfigError(f"{flag} {path} cannot be opened ({error.strerror}); name a file that can") from error
        self._thread = threading.Thread(target=self._run, name="trtspec-lines", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Leave a line, without its end, to be written. Never waits."""
        try:
            self._lines.put_nowait(line)
        except Full:
            self._dropped(1)

    def close(self) -> None:
        """Write what waits; blocks a moment at most."""
        try:
            self._lines.put(None, timeout=CLOSE_SECONDS)
        except Full:
            return
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            lines = [line, *self._waiting()]
            self._write([item for item in lines if item is not None])
            if None in lines:
                break
        os.close(self._file)

    def _waiting(self) -> list[bytes | None]:
        """What else is there already."""
        found: list[bytes | None] = []
        while not found or found[-1] is not None:
            try:
                found.append(self._lines.get_nowait())
            except Empty:
                break
        return found

    def _write(self, lines: list[bytes]) -> None:
        done = 0
        try:
            self._follow_name()
            for line in lines:
                self._put(line)
                done += 1
        except OSError as error:
            if not self._lost:
                _log.warning("%s cannot be written (%s); lines are dropped until it can", self._path, error.strerror)
            self._lost += len(lines) - done
            self._dropped(len(lines) - done)
        else:
            if self._lost:
                _log.warning("%s is written again; %d lines were dropped", self._path, self._lost)
            self._lost = 0

    def _put(self, line: bytes) -> None:
        """One write. A disk that fills up may take a part: the next line then begins on a line of its own."""
        data = b"\n" * self._torn + line + b"\n"
        written = os.write(self._file, data)
        while written < len(data):
            self._torn = True
            written += os.write(self._file, data[written:])
        self._torn = False

    def _follow_name(self) -> None:
        """Open the file anew where its name is no longer its own."""
        here = os.fstat(self._file)
        if not stat.S_ISREG(here.st_mode) or str(self._path) in _STREAMS:
            return
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            named = None
        if named is None or not os.path.samestat(here, named):
            fresh = _open(self._path)
            os.close(self._file)
            self._file, self._torn = fresh, False


def _open(path: Path) -> int:
    if (number := _STREAMS.get(str(path))) is not None:
        return os.dup(number)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
