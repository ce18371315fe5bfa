"""Backends behind one protocol: a request goes in, its events come out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path

from trtspec import manifest as manifests
from trtspec.config import EngineOptions
from trtspec.errors import MissingDependency
from trtspec.executors.base import Executor
from trtspec.executors.tensorrt_llm.probe import INSTALL, is_installed
from trtspec.manifest import Manifest

OpenEngine = Callable[[Path, EngineOptions], Coroutine[object, object, Executor]]
"""What `open_executor` is by default; tests have others."""

_NEEDED = ("torch", "safetensors")
"""What an embedded engine loads and the light core does not bring."""
_RUNNER_NEEDS = {"openvino": ("openvino",)}


async def open_executor(directory: Path, options: EngineOptions, *, in_process: bool = False) -> Executor:
    """Open an engine folder and return when it is warm.

    The engine gets a process of its own; with `in_process` a thread of this one, for tests and builders.
    Raises `EngineFolderError`, `ConfigError` or `MissingDependency` for what cannot be opened.
    """
    manifest = manifests.read(directory)  # a plain mistake is told before a process is started
    _require_packages(manifest)
    if in_process:
        from trtspec.executors.guides.opening import open_guided
        from trtspec.executors.in_process import InProcessExecutor

        return InProcessExecutor(await asyncio.to_thread(open_guided, directory, options))
    from trtspec.executors.supervisor import WorkerExecutor

    return await WorkerExecutor.start(directory, options)


def _require_packages(manifest: Manifest) -> None:
    if manifest.backend == "tensorrt_llm":
        if not is_installed():
            raise MissingDependency(f"this engine needs TensorRT-LLM, which is not installed; {INSTALL}")
        return
    needed = (*_NEEDED, *_RUNNER_NEEDS.get(manifest.runner, ()))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"the embedded engine needs {' and '.join(missing)}, not installed here; pip install 'trtspec[embedded]'"
        )
