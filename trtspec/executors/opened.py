"""What opening an engine folder gives, and which backend opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from trtspec import manifest as manifests
from trtspec.config import EngineOptions
from trtspec.decoding.engine import Engine
from trtspec.errors import EngineFolderError
from trtspec.executors.loop import EngineLoop
from trtspec.executors.messages import Report
from trtspec.types import EngineInfo, EngineStats


class Opened(Protocol):
    """A warm engine, whatever runs it, for the one thread that calls `run`."""

    @property
    def info(self) -> EngineInfo:
        """What it serves."""
        ...

    def stats(self) -> EngineStats:
        """Its state before the first command."""
        ...

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        """Obey the commands of the inbox until `Close`. Whatever it raises ends the engine's process."""
        ...

    def check(self) -> None:
        """Assert its integrity once it is closed."""
        ...


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An engine of ours, which is turned pass by pass."""

    engine: Engine
    info: EngineInfo

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def run(self, inbox: SimpleQueue[Any], publish: Callable[[Report], None]) -> None:
        EngineLoop(self.engine, inbox, publish).run()

    def check(self) -> None:
        self.engine.check()


def open_engine(directory: Path, options: EngineOptions) -> Opened:
    """Open the folder with the backend that its manifest names."""
    manifest = manifests.read(directory, verify=options.verify)
    if manifest.backend == "embedded":
        from trtspec.executors.embedded import opening as embedded

        return embedded.open_engine(directory, manifest, options)
    if manifest.backend == "tensorrt_llm":
        from trtspec.executors.tensorrt_llm import opening as compiled

        return compiled.open_engine(directory, manifest, options)
    raise EngineFolderError(
        f"{directory} was built for {manifest.backend}; this version runs embedded and tensorrt_llm engines"
    )
