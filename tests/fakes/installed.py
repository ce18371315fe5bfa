"""TensorRT-LLM as if it were installed: the double beside this file, here and in processes that are started here."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_FOLDER = str(Path(__file__).parent)
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
        for name in [name for name, module in sys.modules.items() if _took(name, module)]:
            del sys.modules[name]


def _took(name: str, module: ModuleType) -> bool:
    if name.split(".")[0] == _PACKAGE:
        return True
    if not name.startswith(("trtspec.", "builders.")):
        return False
    values = list(vars(module).values())
    origins = [getattr(value, "__module__", None) or getattr(value, "__name__", None) for value in values]
    return any(isinstance(origin, str) and origin.split(".")[0] == _PACKAGE for origin in origins)
