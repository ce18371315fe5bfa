"""A gRPC server before it has services: limits of the wire, and the port."""

from __future__ import annotations

import grpc

from trtspec.service.address import CannotListen, shown
from trtspec.service.options import ServeOptions


def new_server(options: ServeOptions, message_bytes: int) -> grpc.aio.Server:
    """A server that takes messages up to a size."""
    return grpc.aio.server(options=wire_limits(options, message_bytes))


def wire_limits(options: ServeOptions, message_bytes: int) -> list[tuple[str, int]]:
    """What gRPC's core calls channel arguments."""
    return [
        # By default, a second server would share a taken port silently.
        ("grpc.so_reuseport", int(options.frontends > 1)),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        # Clients behind balancers ping idle connections; gRPC's own limit of five minutes would cut them off.
        ("grpc.http2.min_ping_interval_without_data_ms", round(options.time.least_ping_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def listen(server: grpc.aio.Server, host: str, port: int) -> str:
    """Take a port; give the address with the real one. Raises `CannotListen`."""
    try:
        return shown(host, server.add_insecure_port(shown(host, port)))
    except RuntimeError as error:
        raise CannotListen.at(host, port) from error
