"""What surrounds an open engine in the one process that holds it, however many processes answer clients.

Limits over all clients, the admin service and the status page live here: each is a context that takes the executor and
may give another one that stands before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from trtspec.executors.base import Executor
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.signals import StopSignals


@dataclass(frozen=True, slots=True)
class Operation:
    """What operating an engine needs to know."""

    model: ServedModel
    options: ServeOptions
    signals: StopSignals


Operate = Callable[[Executor, Operation], AbstractAsyncContextManager[Executor]]


@asynccontextmanager
async def operated(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
    """The executor as clients get it, with what runs beside it."""
    yield executor


@asynccontextmanager
async def as_it_is(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
    """For a front-end's process: what surrounds the engine is in the main process."""
    yield executor
