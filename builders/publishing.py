"""What every build does around its own stages: space, inputs, the record of the build, the manifest, the swap."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from builders import folder
from builders.inputs import Input, fingerprint
from builders.progress import progress_bars, working_on
from trtspec import manifest
from trtspec.errors import ConfigError
from trtspec.manifest import Manifest

Fill = Callable[[Path, Sequence[Input]], Manifest]
"""Makes all files of a folder but the manifest, which it gives as a value, with its own entries of the record."""


class Wanted(Protocol):
    """What was asked for, hashed, and the files that it is made from, by name."""

    @property
    def inputs(self) -> Mapping[str, Path]: ...
    @property
    def sha256(self) -> str: ...


def build_folder(output: Path, wanted: Wanted, fill: Fill, argv: Sequence[str], needed_bytes: int = 0) -> Manifest:
    """Build beside the folder's place, and put it there whole."""
    began = time.monotonic()
    folder.check_output(output)
    place = output.resolve()
    with folder.staging(place) as directory:
        _check_space(output, directory, needed_bytes)
        inputs = _hash_inputs(wanted.inputs)
        made = fill(directory, inputs)
        build = {
            "argv": list(argv),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - began, 1),
            "recipe": wanted.sha256,
            "inputs": [item.to_dict() for item in inputs],
        }
        finished = replace(made, build={**build, **made.build})
        manifest.write(finished, directory)
        folder.publish(directory, place)
    return finished


def with_smoke(made: Manifest, directory: Path) -> Manifest:
    """The manifest with what the folder's engine says, a few tokens of it."""
    from builders.smoke import run_smoke

    with folder.trial(directory, made) as view, working_on("generating a few tokens"):
        return replace(made, smoke=run_smoke(view, made).to_dict())


def _check_space(output: Path, directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ConfigError(f"--output {output}: the engine needs {needed} bytes and {free} are free on that disk")


def _hash_inputs(files: Mapping[str, Path]) -> list[Input]:
    with progress_bars() as bars:
        return [fingerprint(name, files[name]) for name in bars.track(files, description="inputs")]
