"""What is in a folder of verification engines: `verifier.json`, which builders write and `plugins.runtime` reads."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plugins import defs
from plugins.contract import Array
from trtspec.errors import EngineFolderError, MissingDependency

NAME = "verifier.json"
FORMAT = 1
REBUILD = "build it again with python -m builders.verifier"
MODULES: Mapping[str, tuple[str, ...]] = {
    "tensorrt": ("tensorrt",),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
"""Of the compilers whose engines run here: the Python modules that they may be, the second without its wrapper."""
_INSTALL = {
    "tensorrt": defs.INSTALL,
    "tensorrt_rtx": "pip install tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings",
}


@dataclass(frozen=True, slots=True)
class EngineFile:
    """One engine, and what it takes and gives: names, types, and shapes by names of dimensions."""

    file: str
    bytes: int
    sha256: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class VerifierRecord:
    """What was built."""

    kind: str
    compiler: str
    compiler_version: str
    architectures: tuple[int, ...]
    """Compute capabilities; none where the compiler had no choice."""
    gpu: str | None
    """The one it was built beside."""
    dimensions: Mapping[str, tuple[int, int, int]]
    """Least, usual and most size, by name."""
    vocabulary: int
    logits: str
    versions: Mapping[str, str]
    """Of the other packages that decide what came out."""
    engines: Mapping[str, EngineFile]


def write(record: VerifierRecord, folder: Path) -> None:
    document = {"format": FORMAT, **asdict(record)}
    (folder / NAME).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> VerifierRecord:
    """What is in a folder, or an error that says what is the matter with it."""
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineFolderError(
            f"{folder} has no {NAME}, so it is no folder of verification engines; {REBUILD}"
        ) from None
    except (OSError, ValueError) as error:
        raise EngineFolderError(f"{path} cannot be read ({error}); {REBUILD}") from error
    found = document.pop("format", None) if isinstance(document, dict) else None
    if found != FORMAT:
        raise EngineFolderError(f"{path} has format {found}, and this version reads {FORMAT}; {REBUILD}")
    try:
        return _parse(document)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFolderError(f"{path} is not what it should be ({error!r}); {REBUILD}") from error


def import_first(compiler: str) -> Any:
    """The Python module of a compiler, or an error that says what to install."""
    missing = []
    for name in MODULES[compiler]:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            missing.append(str(error))
    raise MissingDependency(f"{compiler} cannot be imported ({'; '.join(missing)}); {_INSTALL[compiler]}")


def _parse(document: Mapping[str, Any]) -> VerifierRecord:
    engines = {name: _parse_engine(engine) for name, engine in document["engines"].items()}
    dimensions = {name: (int(a), int(b), int(c)) for name, (a, b, c) in document["dimensions"].items()}
    known = {**document, "engines": engines, "dimensions": dimensions}
    return VerifierRecord(**{**known, "architectures": tuple(document["architectures"])})


def _parse_engine(engine: Mapping[str, Any]) -> EngineFile:
    arrays = {key: _parse_arrays(engine[key]) for key in ("inputs", "outputs")}
    return EngineFile(**{**engine, **arrays})


def _parse_arrays(items: Sequence[Mapping[str, Any]]) -> tuple[Array, ...]:
    return tuple(Array(item["name"], item["dtype"], tuple(item["shape"])) for item in items)
