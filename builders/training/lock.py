"""One training run at a time in a work folder: two would write the same answers and the same shards."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.errors import ConfigError

_NAME = ".lock"


@contextmanager
def locked(directory: Path, work: Path) -> Iterator[None]:
    """Hold a folder below `--work`, made where it is missing. Raises `ConfigError` where another run has it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _NAME).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"--work {work}: another run for this target is writing {directory}; wait for it or give another --work"
            ) from error
        yield
