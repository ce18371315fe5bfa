"""Signals that ask a server to end, and what its other processes do with them."""

from __future__ import annotations

import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What operators, terminals and launchers send. Open MPI's mpirun passes SIGUSR1 on, and kills after the others."""


def leave_to_others() -> None:
    """They are sent to whole groups of processes, and when to stop is not this one's decision."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
