"""Packages that a build needs, looked for before anything is read."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from trtspec.errors import MissingDependency

NEEDED = ("torch", "transformers", "safetensors", "gguf")


def require_packages(needed: Sequence[str] = NEEDED) -> None:
    """Say what to install."""
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise MissingDependency(
            f"building needs the package {missing[0]}, which is not installed; pip install 'trtspec[embedded]'"
        )
