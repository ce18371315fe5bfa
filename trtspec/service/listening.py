"""A gRPC server before it has services: limits of the wire, and the port."""

from __future__ import annotations

import grpc

from trtspec.service.address import CannotListen, shown
from trtspec.service.callers import ANYONE, Access
from trtspec.service.guard import Guard
from trtspec.service.options import ServeOptions

_NEVER = 2**31 - 1
"""What gRPC's core takes for an endless time."""
_HANDSHAKE_MILLISECONDS = 20_000
"""Time for a new connection to say something; gRPC's own two minutes would let a thousand silent ones hold files."""
_PENDING_CALLS = 10_000
"""Calls of a burst that may wait to be looked at, so that admission answers them, with a status and a pause. By
default gRPC's core cancels some of them, by chance, as soon as 1,000 wait."""


def new_server(options: ServeOptions, message_bytes: int, access: Access = ANYONE) -> grpc.aio.Server:
    """A server that takes messages up to a size, of those who are let in."""
    return grpc.aio.server(interceptors=[Guard(access)], options=wire_limits(options, message_bytes))


def wire_limits(options: ServeOptions, message_bytes: int) -> list[tuple[str, int]]:
    """What gRPC's core calls channel arguments."""
    times = options.time
    return [
        # By default, a second server would share a taken port silently.
        ("grpc.so_reuseport", int(options.frontends > 1)),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        # A client whose process stands still, or whose network is gone, closes nothing.
        ("grpc.keepalive_time_ms", _milliseconds(times.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(times.keepalive_timeout_seconds)),
        # The one that counts: grpcio 1.85 starts no timer for the one above, and waits a minute for an answer.
        ("grpc.http2.ping_timeout_ms", _milliseconds(times.keepalive_timeout_seconds)),
        # Clients behind balancers ping idle connections; gRPC's own limit of five minutes would cut them off.
        ("grpc.http2.min_ping_interval_without_data_ms", round(times.least_ping_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # gRPC makes the age a tenth longer or shorter at random, for each connection.
        ("grpc.max_connection_age_ms", _milliseconds(times.max_connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(times.max_connection_grace_seconds)),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
        ("grpc.server.max_pending_requests", _PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS),
    ]


def _milliseconds(seconds: float) -> int:
    """A time of the settings, where 0 is never."""
    return min(round(seconds * 1000), _NEVER) or _NEVER


def listen(
    server: grpc.aio.Server,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    flag: str = "--port",
) -> str:
    """Take a port, in plain text without credentials; give the address with the real one.

    Raises `CannotListen`, which names the flag.
    """
    try:
        if credentials is None:
            return shown(host, server.add_insecure_port(shown(host, port)))
        return shown(host, server.add_secure_port(shown(host, port), credentials))
    except RuntimeError as error:
        raise CannotListen.at(host, port, flag) from error
