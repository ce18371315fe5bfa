"""Signals that ask a server to end: the first for an orderly end, a second one for a quick one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

from trtspec.service.waiting import give, new_cue
from trtspec.stop_signals import STOP_SIGNALS

FROM_MAIN_PROCESS = (signal.SIGUSR2,)
"""What the main process sends to a front-end. Not the others, which a terminal or a service manager may send to all
processes at once: each would count twice."""


class StopSignals:
    """Signals of this process as cues."""

    def __init__(self) -> None:
        self.stop = new_cue()
        self.hurry = new_cue()

    def ask(self) -> None:
        """Ask for an orderly end; once more makes it no quicker."""
        give(self.stop)

    def raise_one(self) -> None:
        give(self.hurry if self.stop.done() else self.stop)

    @contextlib.contextmanager
    def handled(self, numbers: tuple[signal.Signals, ...] = STOP_SIGNALS) -> Iterator[None]:
        """Take these signals of this process while the context lasts."""
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self.raise_one)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
