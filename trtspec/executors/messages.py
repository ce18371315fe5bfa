"""What crosses the local channel between the service's process and an engine's.

Frames are a length and a pickle. Both ends are our own processes on a socket pair that nobody else can reach;
nothing from a file or from the network is ever unpickled.
"""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from trtspec.config import EngineOptions
from trtspec.errors import TrtspecError
from trtspec.speculation_limit import SpeculationLimit
from trtspec.types import EngineEvent, EngineInfo, EngineStats, Request

HEADER = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Open:
    """The first command: which engine to open."""

    directory: Path
    options: EngineOptions


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class Limit:
    """Bound the drafts of all requests; it is in force once a `Report` has it."""

    limit: SpeculationLimit


@dataclass(frozen=True, slots=True)
class Close:
    """Stop turning; the parent ends what lives."""


Command = Submit | Cancel | Limit | Close


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is open and warm."""

    info: EngineInfo
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The engine cannot be opened; trying again will not help."""

    error: TrtspecError


@dataclass(frozen=True, slots=True)
class Report:
    """All that one turn made known, so that a pass costs one message whatever its batch."""

    events: tuple[EngineEvent, ...]
    stats: EngineStats


def pack(message: object) -> bytes:
    """A frame."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> object:
    """The message of a frame without its header."""
    return pickle.loads(body)


def receive(channel: socket.socket) -> object | None:
    """The next message of a blocking socket; None where the other end is gone."""
    header = _exactly(channel, HEADER.size)
    body = header and _exactly(channel, HEADER.unpack(header)[0])
    return unpack(body) if body else None


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count > 0:
        try:
            part = channel.recv(count)
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
