"""A server over a fake engine with its admin port, and requests that are held in mid-answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.fakes import FakeExecutor, Hold, Pass, Serving, ids_of, serving
from trtspec.client import AdminClient, Chunk, Client
from trtspec.errors import PermissionDenied, Unauthenticated
from trtspec.generation import GenerationDefaults
from trtspec.service.admin_port import admin_port
from trtspec.service.callers import ANYONE, Access, Caller, Context
from trtspec.service.model import ServedModel
from trtspec.service.options import SecurityOptions, ServeOptions
from trtspec.service.protection import Protection
from trtspec.service.signals import StopSignals
from trtspec.service.watching import WatchedExecutor
from trtspec.types import SamplingParams

OPTIONS = ServeOptions(port=0, security=SecurityOptions(admin_port=0))


@dataclass(frozen=True)
class Operated:
    """A server, its watched engine, its admin port and a client of each."""

    server: Serving
    executor: WatchedExecutor
    signals: StopSignals
    address: str
    admin: AdminClient
    client: Client


@asynccontextmanager
async def operated(executor: FakeExecutor, access: Access = ANYONE) -> AsyncIterator[Operated]:
    watched, signals = WatchedExecutor(executor), StopSignals()
    model = ServedModel(executor.info(), GenerationDefaults(frozenset(), SamplingParams(), "test"))
    async with (
        serving(watched, OPTIONS) as server,
        admin_port(watched, model, OPTIONS, signals, Protection(admin=access)) as address,
        AdminClient(address) as client,
        Client(server.address) as other,
    ):
        yield Operated(server, watched, signals, address, client, other)


def holding() -> tuple[FakeExecutor, Hold]:
    """One token, then five of which four were drafted and three passed, then a pause."""
    hold = Hold(asyncio.Event())
    script = [Pass(ids_of("a"), prefill=True), Pass(ids_of("bcde"), drafted=4, accepted=3), hold, Pass(ids_of("f"))]
    return FakeExecutor(script), hold


async def begun(client: Client, chunks: int = 2, **options: object) -> tuple[object, list[object]]:
    """A request of which so many chunks are there."""
    events = client.generate("hello", **options)  # type: ignore[arg-type]
    got: list[object] = []
    while sum(isinstance(event, Chunk) for event in got) < chunks:
        got.append(await anext(events))
    return events, got


class Named:
    """Lets one name in, and nobody without a word."""

    def __init__(self, name: str) -> None:
        self._name = name

    def caller(self, context: Context) -> Caller:
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        if self._name == "admin":
            match metadata.get("authorization"):
                case None:
                    raise Unauthenticated("no token")
                case "Bearer right":
                    pass
                case _:
                    raise PermissionDenied("wrong token")
        return Caller(self._name, authenticated=True)
