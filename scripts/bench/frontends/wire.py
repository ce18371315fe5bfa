"""`python -m scripts.bench.frontends.wire PORT STREAMS CONNECTIONS MESSAGES`: a client that counts messages.

It asks for what a file on standard input holds: a line with the path of the method, then the bytes of the request.
It speaks just so much HTTP/2 that a message costs it a few microseconds, so that a server can take a core of its own
and costs of a client hide no difference between servers. Prints how long it took and how many bytes came, and fails
where a stream brought another number of messages.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator

DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MARK = b"#" * 8
"""In a request, for a number of the stream in its place."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MOST = 2**31 - 1
"""The largest window; no run sends so much."""
_FIRST_WINDOW = 65_535
_READ_BYTES = 1 << 18
PAUSE_SECONDS = 0.002
"""Between two looks at the sockets: so that one system call takes many messages."""


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack("!I", len(body))[1:] + struct.pack("!BBI", kind, flags, stream) + body


def headers(path: str) -> bytes:
    """Literals without compression."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    texts = ([name.encode(), value.encode()] for name, value in fields.items())
    return b"".join(b"\0" + b"".join(bytes([len(text)]) + text for text in pair) for pair in texts)


class Connection:
    """Streams on one socket, all with the same request."""

    def __init__(self, port: int, streams: int, path: str, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.messages = dict.fromkeys(range(1, 2 * streams, 2), 0)
        self.open = streams
        self._lacking = dict.fromkeys(self.messages, 0)
        """Bytes of the message that has begun on a stream."""
        self._rest = b""
        settings = struct.pack("!HI", 4, _MOST)
        opening = [
            PREFACE,
            frame(SETTINGS, 0, 0, settings),
            frame(WINDOW, 0, 0, struct.pack("!I", _MOST - _FIRST_WINDOW)),
        ]
        head = b"\0" + struct.pack("!I", len(request))
        for stream in self.messages:
            message = head + request.replace(MARK, b"%08d" % (self.socket.fileno() * 10_000 + stream))
            opening += [frame(HEADERS, END_HEADERS, stream, headers(path)), frame(DATA, END_STREAM, stream, message)]
        self.socket.sendall(b"".join(opening))

    def read(self) -> int:
        """Take what is there; gives how many bytes that was."""
        got = self.socket.recv(_READ_BYTES)
        if not got:
            raise ConnectionError("the server closed the connection")
        data, at = self._rest + got, 0
        while len(data) - at >= 9:
            end = at + 9 + (int.from_bytes(data[at : at + 3], "big"))
            if end > len(data):
                break
            self._take(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data, at + 9, end)
            at = end
        self._rest = data[at:]
        return len(got)

    def _take(self, kind: int, flags: int, stream: int, data: bytes, at: int, end: int) -> None:
        if kind == DATA:
            self._count(stream, data, at, end)
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self.socket.sendall(frame(kind, ACK, 0, data[at:end] if kind == PING else b""))
        elif kind in (RESET, GO_AWAY):
            raise ConnectionError(f"the server ended a stream or all of them: {data[at:end]!r}")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self.open -= 1

    def _count(self, stream: int, data: bytes, at: int, end: int) -> None:
        """Count the messages that end here. The head of a message is not torn apart by any server measured."""
        at += self._lacking[stream]
        self.messages[stream] += self._lacking[stream] > 0 and at <= end
        while at < end:
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            self.messages[stream] += at <= end
        self._lacking[stream] = at - end


def measure(connections: list[Connection]) -> Iterator[int]:
    """Read until all streams ended; gives the sizes of what came."""
    with selectors.DefaultSelector() as ready:
        for connection in connections:
            ready.register(connection.socket, selectors.EVENT_READ, connection)
        while any(connection.open for connection in connections):
            for key, _ in ready.select():
                yield key.data.read()
            time.sleep(PAUSE_SECONDS)


def main(argv: list[str]) -> None:
    port, streams, count, messages = map(int, argv)
    path, _, request = sys.stdin.buffer.read().partition(b"\n")
    started = time.perf_counter()
    connections = [Connection(port, streams // count, path.decode(), request) for _ in range(count)]
    size = sum(measure(connections))
    seconds = time.perf_counter() - started
    if wrong := [got for item in connections for got in item.messages.values() if got != messages]:
        raise SystemExit(f"{len(wrong)} streams brought not {messages} messages but {sorted(set(wrong))}")
    print(json.dumps({"seconds": seconds, "bytes": size, "cpu_seconds": time.process_time()}))


if __name__ == "__main__":
    main(sys.argv[1:])
