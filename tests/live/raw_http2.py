"""HTTP/2 by hand, as far as it takes to break its rules."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, body: bytes = b"", flags: int = 0, stream: int = 0, length: int | None = None) -> bytes:
    """A frame; its length can be a lie."""
    size = len(body) if length is None else length
    return struct.pack("!I", size)[1:] + struct.pack("!BBI", kind, flags, stream) + body


def header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    """Headers as literals that nobody need remember."""
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in headers
    )


def call_headers(path: str, *more: tuple[str, str]) -> bytes:
    """What begins a call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
    return header_block([*headers, ("te", "trailers"), ("content-type", "application/grpc"), *more])


OPENING = PREFACE + frame(SETTINGS)


async def send(address: str, data: bytes, *, close: bool = False, patience: float = 2.0) -> bytes:
    """Send bytes to a server; gives what comes back until it closes, or for a while."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = bytearray()

    async def read() -> None:
        while part := await reader.read(1 << 16):
            answer.extend(part)

    with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
        writer.write(data)
        if not close:
            await asyncio.wait_for(read(), patience)
    writer.close()
    return bytes(answer)
