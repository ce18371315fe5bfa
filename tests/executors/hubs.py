"""Front-ends of a hub, in the test's own process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trtspec.executors.channel import Channel
from trtspec.executors.hub import Hub
from trtspec.executors.hub_messages import Joined
from trtspec.executors.remote import RemoteExecutor


@asynccontextmanager
async def served(hub: Hub) -> AsyncIterator[tuple[Channel, asyncio.Task[int]]]:
    """A front-end's end of a channel that the hub serves, and what it says when the front-end is gone."""
    ours, theirs = [await Channel.over(end) for end in socket.socketpair()]

    async def serve() -> int:
        assert await theirs.receive() == Joined()
        return await hub.serve(theirs, lambda: None)

    serving = asyncio.create_task(serve())
    try:
        yield ours, serving
    finally:
        await ours.close()
        await serving
        await theirs.close()


@asynccontextmanager
async def joined(hub: Hub) -> AsyncIterator[RemoteExecutor]:
    """A front-end's executor."""
    async with served(hub) as (channel, _):
        executor = await RemoteExecutor.join(channel)
        yield executor
        await executor.aclose()
