"""Messages on their way to a client, and the end of a request whose client does not take them.

gRPC takes a message from us when the connection has room for it. A client that reads nothing for long would hold a
place, and the engine's blocks, for as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import grpc

from trtspec.errors import SlowReader

Message = TypeVar("Message")


class ClientGone(Exception):
    """A message could not be sent: gRPC is about to cancel the call."""


class Writer(Generic[Message]):
    """Writes for the running task; use it as a context manager around all writes.

    The clock of a write is looked at by one timer, which is set anew once in `seconds` and not for every message. The
    write is given up as `asyncio.timeout` does it: the task is cancelled, and takes that back.
    """

    def __init__(self, write: Callable[[Message], Awaitable[None]], seconds: float, first: Callable[[], None]) -> None:
        self._write = write
        self._seconds = seconds
        self._first: Callable[[], None] | None = first
        """Told before the first message."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._since: float | None = None
        self._late = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Writer[Message]:
        if self._seconds:
            self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def write(self, message: Message) -> None:
        """Write one message. Raises `SlowReader` where the client does not take it in time, and `ClientGone`."""
        if self._first is not None:
            self._first()
            self._first = None
        self._since = self._loop.time()
        try:
            await self._write(message)
        except grpc.aio.InternalError as error:
            raise ClientGone from error
        except asyncio.CancelledError:
            if self._late and self._is_only_ours():
                raise SlowReader(
                    f"no message was taken from the server for {self._seconds:g} s, which is the limit; read faster, "
                    "or ask for fewer messages with stream_options"
                ) from None
            raise
        finally:
            self._since = None

    def _look(self) -> None:
        """Give up a write that began too long ago; else look again when the present one, or the next, can be that."""
        now = self._loop.time()
        left = self._seconds if self._since is None else self._since + self._seconds - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self._late = True
            self._task.cancel()

    def _is_only_ours(self) -> bool:
        """Nobody else cancelled the task, too; Python 3.10 cannot tell."""
        uncancel = getattr(self._task, "uncancel", None)
        return uncancel is None or uncancel() == 0
