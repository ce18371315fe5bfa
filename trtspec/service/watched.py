"""A value that is made of files, and made again when one of them changes. A bad change leaves it as it was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from trtspec.errors import ConfigError

_log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20
"""Of a file of certificates or tokens: more is a mistake, such as the name of another file."""

T = TypeVar("T")
Stamp = tuple[int, ...] | None


class Watched(Generic[T]):
    """Reads the files when it is made, which raises `ConfigError`, and later whenever they look different.

    It may be asked from any thread. A refused change is logged once, with what stays in use.
    """

    def __init__(
        self, what: str, paths: Sequence[Path], read: Callable[[], T], accept: Callable[[T], None] | None = None
    ) -> None:
        self._what = what
        self._paths = paths
        self._read = read
        self._accept = accept
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._value = read()
        self.problem = ""
        """Why the files as they are now are not in use; empty where they are."""

    def current(self) -> T:
        """The value, made of the newest files that were good."""
        with self._lock:
            # Before reading: what changes meanwhile is seen the next time.
            stamps = self._look()
            if stamps != self._stamps:
                self._stamps = stamps
                self._renew()
            return self._value

    def _renew(self) -> None:
        try:
            value = self._read()
            if self._accept is not None:
                self._accept(value)
        except ConfigError as error:
            self.problem = str(error)
            _log.error("%s; %s stay as they were", error, self._what)
        else:
            self._value, self.problem = value, ""
            _log.warning("%s were read again, for %s changed", self._what, " or ".join(map(str, self._paths)))

    def _look(self) -> tuple[Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def content(path: Path, flag: str) -> bytes:
    """The bytes of a small file. Raises `ConfigError`, which names the flag."""
    try:
        with path.open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{flag} {path} cannot be read: {reason}") from error
    if len(found) > _MOST_BYTES:
        raise ConfigError(f"{flag} {path} has more than {_MOST_BYTES} bytes; is it the right file?")
    return found


def warn_if_open(path: Path, flag: str) -> None:
    """Say so where others may read a file of secrets, or change it."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        return
    if mode & 0o026:
        _log.warning(
            "%s %s may be read or changed by others (mode %03o); `chmod 600` it, or 640 for a group of its own",
            *(flag, path, mode),
        )
