"""A small HTTP server: GET only, one answer for each connection, few connections, little patience.

It does not know what it serves. Only names that this machine is surely known by may be in the Host header: a web page
elsewhere whose name was made to point here (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from trtspec.service.address import CannotListen, shown

MOST_CONNECTIONS = 32
MOST_HEAD_BYTES = 16 << 10
PATIENCE_SECONDS = 10.0
"""For a client to ask, and again for it to take the answer."""
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Connection": "close",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """To one GET."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Headers = Mapping[str, str]
"""By lower-case name."""
Route = Callable[[Headers], Awaitable[Answer]]


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class SmallServer:
    """Serves routes by their path."""

    def __init__(self, host: str, routes: Mapping[str, Route]) -> None:
        self._names = frozenset({"localhost", host.lower(), socket.gethostname().lower()})
        self._routes = routes
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int, flag: str) -> AsyncIterator[str]:
        """Serve while the context lasts; gives the address. Raises `CannotListen`, which names the port's flag."""
        try:
            server = await asyncio.start_server(self._serve, host, port, limit=MOST_HEAD_BYTES)
        except OSError as error:
            # asyncio's own text repeats the address; errors of names have no number of the system.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise CannotListen(
                f"cannot listen on {shown(host, port)} ({why}); choose another port with {flag}, or 0 for a free one"
            ) from error
        try:
            yield shown(host, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in (left := list(self._connections)):
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        # Cancelled only where the server ends; asyncio of Python 3.11 would leave a traceback behind.
        with contextlib.suppress(asyncio.CancelledError):
            await self._talk(reader, writer)
        self._connections.discard(task)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) <= MOST_CONNECTIONS:
                answer = await asyncio.wait_for(self._answer(reader), PATIENCE_SECONDS)
            else:
                answer = _plain(503, f"{MOST_CONNECTIONS} connections are open; try again")
            writer.write(_packed(answer))
            await asyncio.wait_for(writer.drain(), PATIENCE_SECONDS)
        except (asyncio.TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()  # it asked for nothing, or left
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), PATIENCE_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        try:
            path, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
            self._check_host(headers.get("host", ""))
        except asyncio.LimitOverrunError:
            return _plain(400, f"the request's head has more than {MOST_HEAD_BYTES} bytes")
        except _Refused as error:
            return _plain(error.status, str(error))
        if path not in self._routes:
            return _plain(404, f"there are {', '.join(self._routes)}")
        try:
            return await self._routes[path](headers)
        except Exception:  # a mistake of ours must not look like a broken network
            _log.exception("%s could not be answered", path)
            return _plain(500, "this could not be answered; the server's log has why")

    def _check_host(self, given: str) -> None:
        name = given.rpartition(":")[0] if given.rpartition(":")[2].isdigit() else given
        if name.lower().rstrip(".") not in self._names and not _is_address(name):
            raise _Refused(421, "this name is not known to be of this server; use its address")


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    """The path without its query, and the headers."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        raise _Refused(400, "this is no HTTP/1 request")
    if method != "GET":
        raise _Refused(405, "only GET is answered")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise _Refused(400, "a header line has no name")
        headers[name.lower()] = value.strip()
    return target.partition("?")[0], headers


def _is_address(name: str) -> bool:
    """Whether it is an IP address, which no name server can make point elsewhere."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.strip("[]").partition("%")[0])
        return True
    return False


def _plain(status: int, text: str) -> Answer:
    return Answer(f"{text}\n".encode(), status=status, headers={"Allow": "GET"} if status == 405 else {})


def _packed(answer: Answer) -> bytes:
    headers = {
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        **_HEADERS,
        **answer.headers,
    }
    head = f"HTTP/1.1 {answer.status} {_PHRASES[answer.status]}\r\n"
    return (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + answer.body
