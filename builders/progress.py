"""Progress on stderr, for people only: a log file gets none."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


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


def working_on(what: str) -> AbstractContextManager[object]:
    """A spinner for work whose length is unknown."""
    return Console(stderr=True).status(what)
