"""Backends behind one protocol: a request goes in, its events come out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from trtspec import manifest as manifests
from trtspec.config import EngineOptions
from trtspec.executors.base import Executor


async def open_executor(directory: Path, options: EngineOptions, *, in_process: bool = False) -> Executor:
    """Open an engine folder and return when it is warm.

    The engine gets a process of its own; with `in_process` a thread of this one, for tests and builders.
    Raises `EngineFolderError`, `ConfigError` or `MissingDependency` for what cannot be opened.
    """
    if in_process:
        from trtspec.executors.in_process import InProcessExecutor
        from trtspec.executors.opened import open_engine

        return InProcessExecutor(await asyncio.to_thread(open_engine, directory, options))
    from trtspec.executors.supervisor import WorkerExecutor

    manifests.read(directory)  # a plain mistake is told before a process is started
    return await WorkerExecutor.start(directory, options)
