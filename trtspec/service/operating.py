"""What surrounds an open engine in the one process that holds it, however many processes answer clients.

Limits over all clients, the admin service and the status page live here: each is a context that takes the executor and
may give another one that stands before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from trtspec.errors import ConfigError
from trtspec.executors.base import Executor
from trtspec.service.admin_port import admin_port
from trtspec.service.callers import ANYONE, Access
from trtspec.service.model import ServedModel
from trtspec.service.options import SecurityOptions, ServeOptions
from trtspec.service.signals import StopSignals
from trtspec.service.watching import WatchedExecutor


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
    if operation.options.security.admin_port < 0:
        yield executor
        return
    watched = WatchedExecutor(executor)
    access = _admin_access(operation.options.security)
    async with admin_port(watched, operation.model, operation.options, operation.signals, access):
        yield watched


def _admin_access(security: SecurityOptions) -> Access:
    """Who may operate. Tokens that nobody would ask for must not be taken for protection."""
    if security.admin_tokens is not None:
        raise ConfigError("--admin-tokens: this version reads no token files; leave it out, and listen on 127.0.0.1")
    return ANYONE


@asynccontextmanager
async def as_it_is(executor: Executor, operation: Operation) -> AsyncIterator[Executor]:
    """For a front-end's process: what surrounds the engine is in the main process."""
    yield executor
