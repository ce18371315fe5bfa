"""What surrounds an open engine in the one process that holds it, however many processes answer clients.

Limits over all clients, the admin service and the status page live here: each is a context that takes the executor and
may give another one that stands before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from trtspec.executors.base import Executor
from trtspec.service.admin_port import admin_port
from trtspec.service.gate import GatedExecutor, GateLimits
from trtspec.service.model import ServedModel
from trtspec.service.options import ServeOptions
from trtspec.service.protection import NONE, Protection
from trtspec.service.signals import StopSignals
from trtspec.service.watching import WatchedExecutor


@dataclass(frozen=True, slots=True)
class Operation:
    """What operating an engine needs to know."""

    model: ServedModel
    options: ServeOptions
    signals: StopSignals
    protection: Protection = NONE


Operate = Callable[[Executor, Operation], AbstractAsyncContextManager[Executor]]


@asynccontextmanager
async def operated(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
    """The executor as clients get it, with what runs beside it."""
    options = operation.options
    limits = GateLimits.of(options.admission, executor.info().limits.max_batch_size)
    if options.security.admin_port < 0:
        yield GatedExecutor(executor, limits)
        return
    watched = WatchedExecutor(executor)
    protection = operation.protection
    async with admin_port(watched, operation.model, options, operation.signals, protection):
        yield GatedExecutor(watched, limits)


@asynccontextmanager
async def as_it_is(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
    """For a front-end's process: what surrounds the engine is in the main process."""
    yield executor
