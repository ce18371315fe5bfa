"""The file of a run's state: tensors by name, and all else as JSON in the header of the same safetensors file.

Nothing in it can run code when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trtspec.errors import ConfigError

_PLAIN = "state"
"""The key of the JSON in the header."""
Group = Mapping[str, Tensor]


def write(path: Path, groups: Mapping[str, Group], plain: Mapping[str, Any]) -> None:
    """Write groups of tensors and plain values; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    tensors = {
        f"{group}.{name}": value.contiguous() for group, values in groups.items() for name, value in values.items()
    }
    save_file(tensors, partial, metadata={_PLAIN: json.dumps(plain)})
    partial.replace(path)


def read(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What was written. Raises `ConfigError`."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            plain = json.loads((file.metadata() or {})[_PLAIN])
            names = file.keys()
            for full in names:
                group, _, name = full.partition(".")
                groups.setdefault(group, {})[name] = file.get_tensor(full)
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not the state of this run ({_line(error)}); remove it to begin again") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} is not the state of this run (its header is no object); remove it to begin again")
    return groups, plain


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
