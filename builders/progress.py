"""Progress on stderr, for people only: a log file gets none. And what happens when people stop reading."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Report = Callable[[str, int, int], None]
"""Told the stage, what is done, and of how much."""


def progress_bars() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def stage_bars() -> Iterator[Report]:
    """A bar for each stage that reports."""
    with progress_bars() as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def working_on(what: str) -> AbstractContextManager[object]:
    """A spinner for work whose length is unknown."""
    return Console(stderr=True).status(what)


def stop_printing() -> int:
    """Nobody reads standard output any more, and what is left of it goes nowhere; returns the exit code for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


@contextmanager
def silence(silent: bool) -> Iterator[None]:
    """Print nothing inside, as one of several processes that would all say the same."""
    if not silent:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield
