"""TensorRT-LLM as if it were installed: the double beside this file, here and in processes that are started here."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import nvinfer

_FOLDER = str(Path(__file__).parent)
_MPI = str(Path(__file__).parent / "mpi")
_PACKAGE = "tensorrt_llm"
_VARIABLE = "PYTHONPATH"


@contextlib.contextmanager
def tensorrt_llm_double() -> Iterator[ModuleType]:
    """The package, importable; afterwards it is gone, with all modules of ours that took something of it."""
    before = os.environ.get(_VARIABLE)
    root = str(Path(_FOLDER).parents[1])
    os.environ[_VARIABLE] = os.pathsep.join([_FOLDER, root, *([before] if before else [])])
    sys.path.insert(0, _FOLDER)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(_PACKAGE)
    finally:
        sys.path.remove(_FOLDER)
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before
        for name in _taken():
            parent, _, own = name.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(own, None)  # which `from parent import own` would look at first
            del sys.modules[name]


def need_plugins() -> None:
    """Skip where networks with plugins cannot be built: they are of TensorRT's real Python layer."""
    if (missing := nvinfer.missing_here()) is not None:
        pytest.skip(missing)


@contextlib.contextmanager
def mpi_world(size: int, rank: int = 0, *, launched: int | None = None) -> Iterator[None]:
    """As if Open MPI's mpirun had started this process alone; `launched` where MPI knows of another size."""
    told = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(launched or size)}
    path = [_MPI, *filter(None, [os.environ.get(_VARIABLE)])]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (told | {"FAKE_MPI": f"{rank}/{size}", _VARIABLE: os.pathsep.join(path)}).items():
            patch.setenv(name, value)
        patch.syspath_prepend(_MPI)
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.split(".")[0] == "mpi4py"]:
                del sys.modules[name]


def _taken() -> list[str]:
    """The package's modules, those of ours that hold something of them, and those that hold something of these."""
    ours = {
        name: _origins(module) for name, module in sys.modules.items() if name.startswith(("trtspec.", "builders."))
    }
    taken = [name for name in sys.modules if name.split(".")[0] == _PACKAGE]
    while more := [name for name in ours if name not in taken and not ours[name].isdisjoint(taken)]:
        taken += more
    return taken


def _origins(module: ModuleType) -> set[str]:
    """Modules that what a module holds is of, or is."""
    if hasattr(module, "__path__"):  # a package holds its parts, and is none the worse for it
        return set()
    values = list(vars(module).values())
    found = (getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in values)
    return {origin for origin in found if isinstance(origin, str)}
