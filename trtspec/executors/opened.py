"""What opening an engine folder gives, and which backend opens it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec import manifest as manifests
from trtspec.config import EngineOptions
from trtspec.decoding.engine import Engine
from trtspec.errors import EngineFolderError
from trtspec.types import EngineInfo


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A warm engine and what it serves."""

    engine: Engine
    info: EngineInfo


def open_engine(directory: Path, options: EngineOptions) -> OpenedEngine:
    """Open the folder with the backend that its manifest names."""
    manifest = manifests.read(directory, verify=options.verify)
    if manifest.backend != "embedded":
        raise EngineFolderError(f"{directory} was built for {manifest.backend}; this version runs embedded engines")
    from trtspec.executors.embedded import opening

    return opening.open_engine(directory, manifest, options)
