"""Who calls: the name that limits, logs and prefix caches go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import grpc

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """A client, as far as the server knows it."""

    name: str
    """Of a bearer token or a certificate; else the address it calls from, without the port."""
    authenticated: bool = False
    """The name is proven, so its prefix caches are its own."""


NAMELESS = Caller("")


class Access(Protocol):
    """What decides who may call."""

    def caller(self, context: Context) -> Caller:
        """Who calls. Raises `Unauthenticated` or `PermissionDenied`, both `RequestError`s."""
        ...


class Anyone:
    """Implements `Access` where no proof is asked for."""

    def caller(self, context: Context) -> Caller:
        return Caller(address(context.peer()))


ANYONE = Anyone()


def address(peer: str) -> str:
    """The address of gRPC's name for a peer, such as `ipv4:10.0.0.1:4711`, without the port."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer
