"""Where a server listens, and how several processes come to share one port."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any

from trtspec.errors import TrtspecError

Address = tuple[Any, ...]
"""As the socket module has it: host and port, and for IPv6 two numbers more."""


class CannotListen(TrtspecError):
    """The address is taken or not of this machine."""

    @classmethod
    def at(cls, host: str, port: int, flag: str = "--port") -> CannotListen:
        return cls(
            f"cannot listen on {shown(host, port)}; is the port in use? Choose another with {flag}, or 0 for a free one"
        )


def shown(host: str, port: int) -> str:
    """The address as clients write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def shared_port(host: str, port: int) -> Iterator[int]:
    """Hold a port, a free one for 0, that processes of this user may listen on with SO_REUSEPORT.

    A socket that only holds gets no connections. Raises `CannotListen` where somebody else has the port, although
    SO_REUSEPORT alone would let us share it: two servers by mistake on one port answer by turns.
    """
    holding = False
    with contextlib.ExitStack() as held:
        for family, address in _addresses(host, port):
            holder = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            try:
                _hold(holder, (address[0], port, *address[2:]))
            except OSError as error:
                # Names such as localhost stand for addresses of both families, and a machine may lack one.
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
                raise CannotListen.at(host, port) from error
            holding, port = True, holder.getsockname()[1]
        if not holding:
            raise CannotListen.at(host, port)
        yield port


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Address]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen.at(host, port) from error
    return [(family, address) for family, _, _, _, address in found]


def _hold(holder: socket.socket, address: Address) -> None:
    """Bind where nobody else is bound, and only then allow sharing."""
    try:
        holder.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # Perhaps only connections of a server that ended are left; those, and nobody who listens, yield to this.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(address)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
