"""Exit code 0 where a server answers requests, for containers without grpcurl.

`python3 healthcheck.py HOST:PORT`, and for TLS `python3 healthcheck.py HOST:PORT CA.pem`, by a name in its certificate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SECONDS = 3.0


def main(address: str, ca: str = "") -> int:
    """Ask the standard health service."""
    with _channel(address, ca) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}")
            return 1
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    print(f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
    return 0 if serving else 1


def _channel(address: str, ca: str) -> grpc.Channel:
    if not ca:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(ca).read_bytes()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
