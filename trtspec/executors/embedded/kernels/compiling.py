"""How kernels are compiled: by Numba, for the CPU at hand, once a machine; later processes find them in its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import njit

from trtspec.cache import cache_directory

F = TypeVar("F", bound=Callable[..., Any])
_RELAXED = {"reassoc", "contract", "arcp", "nsz"}
"""Sums may be taken in lanes; what is not a number stays what it is."""
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": _RELAXED}


def _folder() -> str:
    """Where compiled kernels are kept, by all sources: Numba itself looks at the file of a kernel alone, and not at
    those that write its instructions. Nothing, where there is no home."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    try:
        return str(cache_directory() / "kernels" / version[:12])
    except RuntimeError:
        return ""


if not numba.config.CACHE_DIR:  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = _folder()  # type: ignore[attr-defined]


def serial(function: F) -> F:
    """Compile for one thread."""
    return _compiled(function)


def inlined(function: F) -> F:
    """Part of each kernel that calls it: calls with arrays cost as much as a short product."""
    return _compiled(function, inline="always")


def parallel(function: F) -> F:
    """Compile with `prange` over the threads of the caller."""
    return _compiled(function, parallel=True)


def _compiled(function: F, **options: Any) -> F:
    try:
        return cast(F, njit(cache=True, **options, **_OPTIONS)(function))
    except RuntimeError:  # no folder for the cache can be written, neither here nor in a home
        return cast(F, njit(**options, **_OPTIONS)(function))
