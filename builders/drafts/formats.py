"""The formats of drafters that `--draft` reads, and finding out which one a folder has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.checkpoint import EMBEDDING
from builders.drafts import card as cards
from builders.drafts import eagle, eagle3, medusa, native, speculators
from builders.drafts.draft_model import open_draft_model
from builders.drafts.source import OpenedDraft
from builders.model_config import read_json
from builders.tensor_files import tensor_names
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executors.embedded import drafter_config

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Format:
    """One kind of folder with a config.json."""

    open: Callable[[Path, Config], OpenedDraft]
    mark: str
    """What it is known by, for people."""
    key: str | None = None
    """A key of config.json that only this format has."""
    tensor: str | None = None
    """How the name of a tensor begins that only this format has, of those not known by a key."""


_FORMATS = (
    _Format(speculators.open_speculators, f"{speculators.KIND_KEY} in config.json", key=speculators.KIND_KEY),
    _Format(medusa.open_medusa, f"{medusa.HEADS_KEY} in config.json (Medusa)", key=medusa.HEADS_KEY),
    _Format(eagle3.open_eagle3, f"tensors {eagle3.LAYER}* (EAGLE-3)", tensor=eagle3.LAYER),
    _Format(eagle.open_eagle, f"tensor {eagle.FUSION} (EAGLE)", tensor=eagle.FUSION),
    _Format(lambda path, _: open_draft_model(path), f"tensor {EMBEDDING} (a model)", tensor=EMBEDDING),
)
"""In the order in which they are tried."""


def open_draft(path: Path) -> OpenedDraft:
    """Find out what a folder or `.gguf` file holds, and read its card."""
    if path.suffix == ".gguf" and path.is_file():
        return open_draft_model(path)
    if not path.is_dir():
        raise ConfigError(f"--draft {path}: no such folder, and no .gguf file; give a drafter's folder")
    if native.holds(path):
        return native.open_native(path)
    if not (path / "config.json").is_file():
        raise _unknown(path)
    raw = read_json(path / "config.json")
    found = next((item for item in _FORMATS if item.key is not None and item.key in raw), None)
    return (found or _by_tensors(path, tensor_names(path))).open(path, raw)


def _by_tensors(path: Path, names: Collection[str]) -> _Format:
    for item in _FORMATS:
        if item.tensor is not None and any(name.startswith(item.tensor) for name in names):
            return item
    raise _unknown(path)


def _unknown(path: Path) -> CheckpointError:
    ours = f"{drafter_config.NAME} and {cards.NAME} (as `python -m builders.train` writes)"
    marks = (ours, *(item.mark for item in _FORMATS))
    return CheckpointError(f"--draft {path} is no drafter of a known format; looked for {', '.join(marks)}")
