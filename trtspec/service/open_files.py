"""Room for connections: each one holds a file descriptor."""

from __future__ import annotations

import resource


def raise_limit() -> None:
    """Take as many open files as the system lets us have.

    The usual soft limit of 1024 is for programs that `select`; a thousand silent connections would shut out everybody.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
