"""`python -m scripts.bench.profiled_worker FD`: the engine's worker process, with the phases of its passes timed.

Timers are put around functions from outside, so that the product carries none. When the worker ends, what was counted
goes to the file that `$TRTSPEC_PROFILE` names.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

from trtspec.config import EngineOptions
from trtspec.executors import opened, worker
from trtspec.executors.loop import EngineLoop
from trtspec.executors.messages import Command
from trtspec.executors.opened import OpenedEngine

FILE = "TRTSPEC_PROFILE"
PHASES = ("plan", "propose", "forward", "choose", "verify", "logprobs", "commit", "publish", "idle")
FORWARD = "forward"


@dataclass(slots=True)
class Profile:
    """Seconds of each phase, without the phases inside it, and how many passes there were."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    passes: int = 0
    span: float = 0.0
    """From the first pass to the end of the last."""


class Stopwatch:
    """Adds up phases between the first pass and the last. One thread."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.profile = Profile()
        self._now = now
        self._begun: float | None = None
        self._spent = dict(self.profile.seconds)
        self._unpublished = False
        self._open: list[float] = []
        """For each phase under way, the time spent in phases inside it."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self._now()
        if name == "plan" and self._begun is None:
            self._begun = started
        self._open.append(0.0)
        try:
            yield
        finally:
            spent = self._now() - started
            self._spent[name] += spent - self._open.pop()
            if self._open:
                self._open[-1] += spent
            self._settle(name)

    def _settle(self, name: str) -> None:
        """Count what was spent up to here, once a pass is published. Idle time before the first or after the last pass
        is nobody's."""
        if name == FORWARD:
            self.profile.passes += 1
            self._unpublished = True
        elif self._begun is None:
            self._spent[name] = 0.0
        elif name == "publish" and self._unpublished:
            self._unpublished = False
            self.profile.seconds.update(self._spent)
            self.profile.span = self._now() - self._begun

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.phase(name):
                return function(*arguments, **named)

        return timed


def watch(stopwatch: Stopwatch, engine: Any, stack: ExitStack) -> None:
    """Time the phases of an open engine. Here alone the profile knows the engine's insides."""
    from trtspec.decoding import chooser, step
    from trtspec.executors.embedded.kernel_chooser import KernelChooser

    places: list[tuple[str, Any, str]] = [
        ("plan", type(engine), "begin"),
        ("propose", type(engine._proposer), "propose"),
        (FORWARD, type(engine._runner), "forward"),
        ("choose", type(engine._editor), "edits"),
        ("choose", chooser, "choose_all"),
        ("verify", chooser, "walk_tree"),
        ("choose", KernelChooser, "exact"),
        ("choose", KernelChooser, "rejection"),
        ("logprobs", step, "pass_logprobs"),
        ("commit", type(engine._scheduler), "commit"),
        ("publish", EngineLoop, "_report"),
    ]
    for phase, owner, name in places:
        stack.enter_context(patch.object(owner, name, stopwatch.around(phase, getattr(owner, name))))


def main(channel: socket.socket) -> int:
    """Run the worker, timed from when its engine is warm."""
    stopwatch = Stopwatch()
    really_open = opened.open_engine

    class Inbox(SimpleQueue[Command]):
        """Waiting for a command is being idle."""

        def get(self, block: bool = True, timeout: float | None = None) -> Command:
            with stopwatch.phase("idle"):
                return super().get(block, timeout)

    with ExitStack() as stack:

        def open_and_watch(directory: Path, options: EngineOptions) -> OpenedEngine:
            result = really_open(directory, options)
            if not isinstance(result, OpenedEngine):
                raise TypeError("only embedded engines have passes to time")
            watch(stopwatch, result.engine, stack)
            return result

        stack.enter_context(patch.object(opened, "open_engine", open_and_watch))
        stack.enter_context(patch.object(worker, "SimpleQueue", Inbox))
        status = worker.main(channel)
    Path(os.environ[FILE]).write_text(json.dumps(asdict(stopwatch.profile)))
    return status


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
