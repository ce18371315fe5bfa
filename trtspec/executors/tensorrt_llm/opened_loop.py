"""An open engine of either flow: the loop that drives it, and what it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from trtspec.executors.messages import Report
from trtspec.types import EngineInfo, EngineStats


class Loop(Protocol):
    """`EngineLoop` or `LlmLoop`."""

    @property
    def stats(self) -> EngineStats: ...

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None: ...

    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenedLoop:
    """Implements `Opened` over a loop that owns its engine."""

    loop: Loop
    info: EngineInfo

    def stats(self) -> EngineStats:
        return self.loop.stats

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        self.loop.run(inbox, publish)

    def check(self) -> None:
        self.loop.check()
