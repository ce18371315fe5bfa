"""One end of a local channel on an event loop: whole messages over a socket pair. It knows no message."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from trtspec.executors.messages import HEADER, pack, unpack


class Channel:
    """Made by `over`. Its other end is another process of ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Take over an end of a socket pair."""
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: object) -> None:
        """Hand over a message; to a closed channel nothing needs to be said."""
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def drain(self) -> None:
        """Wait while the other end is slow to read. For one task at a time."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def receive(self) -> object | None:
        """The next message; None once the other end is gone."""
        try:
            header = await self._reader.readexactly(HEADER.size)
            return unpack(await self._reader.readexactly(HEADER.unpack(header)[0]))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        """Send what waits, and close. Safe to repeat."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
