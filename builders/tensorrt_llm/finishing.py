"""What builds for both flows end with: a smoke test where one process can serve the folder, and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import trtspec
from builders.publishing import with_smoke
from builders.tensorrt_llm.asked import Asked
from trtspec.executors.tensorrt_llm.probe import PINNED
from trtspec.manifest import Manifest

_PACKAGES = ("torch", "transformers", "safetensors")


def smoked(made: Manifest, directory: Path, asked: Asked, skipped: str) -> Manifest:
    """The manifest with what the folder says; of several ranks, with why that was skipped."""
    if (ranks := asked.tp * asked.pp) == 1:
        return with_smoke(made, directory)
    told = {"tokens": 0, "equal": None, "text": "", "skipped": skipped.format(ranks=ranks)}
    return replace(made, smoke=told)


def versions(*more: str) -> Mapping[str, str]:
    """What built the folder; of `more` packages, as far as they are installed under that name."""
    own = {"trtspec": trtspec.__version__, "tensorrt-llm": PINNED}
    return own | {name: metadata.version(name) for name in (*_PACKAGES, *filter(_is_there, more))}


def _is_there(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False
