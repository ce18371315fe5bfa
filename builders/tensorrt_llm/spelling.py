"""config.json in the spelling of transformers 4, which TensorRT-LLM 1.2.1 runs with.

transformers 5 writes rotary settings under `rope_parameters`. Its predecessor does not know the key and takes defaults,
without a word: the model would compute something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builders.model_config import read_json

_NEW = "rope_parameters"
CONFIG = "config.json"


def old_spelling(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config with the old keys beside; None where nothing has to change."""
    rope = raw.get(_NEW)
    if not isinstance(rope, Mapping):
        return None
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    default = scaling.get("rope_type", "default") == "default"
    theta = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    dtype = {"torch_dtype": raw["dtype"]} if "dtype" in raw else {}
    return {**raw, **theta, **dtype, "rope_scaling": None if default else scaling}


def in_old_spelling(folder: Path, place: Path) -> Path:
    """The folder, or one at `place` with the same files and another config.json."""
    changed = old_spelling(read_json(folder / CONFIG))
    if changed is None:
        return folder
    place.mkdir(parents=True)
    for entry in folder.iterdir():
        if entry.name != CONFIG:
            os.symlink(entry.resolve(), place / entry.name, target_is_directory=entry.is_dir())
    (place / CONFIG).write_text(json.dumps(changed, indent=2) + "\n")
    return place
