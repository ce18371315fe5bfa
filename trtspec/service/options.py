"""What an operator can set on a server, each declared once.

Flags, variables, the file of settings, their help and their checks derive from the fields' metadata
(`trtspec.declared`). A group is a table of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.declared import check_values

_LEAST_MESSAGE_BYTES = 1 << 20
_BYTES_PER_TOKEN = 32
"""Text of a prompt takes about four bytes a token; ids take at most five. The rest is room for odd languages."""


def _setting(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class _Checked:
    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, slots=True)
class AdmissionOptions(_Checked):
    """Who may come in, and who must wait."""

    max_queued_requests: int = _setting(
        64, "requests that may wait for a place in the batch, over all front-ends", min=0
    )
    max_queued_tokens: int = _setting(
        0, "prompt tokens of all requests that wait, over all front-ends; 0 is no bound of its own", min=0
    )
    max_queued_bytes: int = _setting(
        0, "bytes of all messages that are being read or wait; 0 is sixteen of the largest message", min=0
    )
    max_message_bytes: int = _setting(0, "largest message; 0 is what the model's context needs, 1 MiB at least", min=0)
    queue_seconds: float = _setting(
        0.0, "a request that has waited for so long is refused; 0 lets it wait as long as its client does", min=0
    )
    max_client_requests: int = _setting(0, "live requests of one client; 0 is no bound", min=0)
    client_requests_per_minute: int = _setting(0, "requests of one client that are let in; 0 is no bound", min=0)
    client_tokens_per_minute: int = _setting(0, "tokens of one client, of prompts and answers; 0 is no bound", min=0)
    reader_seconds: float = _setting(
        300.0, "a client that takes no message for so long loses its request; 0 waits for ever", min=0
    )


@dataclass(frozen=True, slots=True)
class TimeOptions(_Checked):
    """How long things may take."""

    drain_seconds: float = _setting(30.0, "time that running requests have to end after SIGTERM", min=0)
    keepalive_seconds: float = _setting(
        30.0, "silence after which the server asks whether a client is still there; 0 never asks", min=0
    )
    keepalive_timeout_seconds: float = _setting(
        20.0, "time that a client has to answer that, before its requests are cancelled", min=1
    )
    least_ping_seconds: float = _setting(10.0, "clients that ping more often than this are cut off", min=0)
    max_connection_age_seconds: float = _setting(
        0.0, "connections are closed politely at this age, give or take a tenth, so that clients spread; 0 never", min=0
    )
    max_connection_grace_seconds: float = _setting(
        0.0, "time that the streams of such a connection have to end; 0 lets them end by themselves", min=0
    )


@dataclass(frozen=True, slots=True)
class SecurityOptions(_Checked):
    """Who is believed to be whom."""

    tls_certificate: Path | None = _setting(None, "certificate chain of the server, PEM; read again when it changes")
    tls_key: Path | None = _setting(None, "private key of the certificate, PEM")
    tls_client_ca: Path | None = _setting(None, "certificates that clients' certificates must be signed by (mTLS)")
    tokens: Path | None = _setting(None, "file of bearer tokens of clients; read again when it changes")
    admin_tokens: Path | None = _setting(None, "file of bearer tokens of the admin port")
    allow_insecure: bool = _setting(
        False, "listen beyond this machine without TLS and tokens, where the network does their work"
    )
    reflection: str = _setting(
        "auto",
        "where grpcurl can ask for the interface; auto is main on a loopback address, else admin",
        choices=("auto", "main", "admin", "off"),
    )
    admin_host: str = _setting("127.0.0.1", "address of the admin port")
    admin_port: int = _setting(
        -1, "port of the service trtspec.v1.Admin; 0 takes a free one, -1 is none", min=-1, max=65535
    )


@dataclass(frozen=True, slots=True)
class TelemetryOptions(_Checked):
    """What a server tells of itself."""

    status_host: str = _setting("127.0.0.1", "address of the status port")
    status_port: int = _setting(
        -1,
        "port of a page with live charts, and of /metrics for Prometheus; 0 takes a free one, -1 is none",
        min=-1,
        max=65535,
    )
    metrics_compatibility: str = _setting(
        "none",
        "speculation metrics under the names of others, too: vllm:spec_decode_* and "
        "trtllm_spec_decode_acceptance_length",
        choices=("none", "vllm", "tensorrt_llm", "all"),
    )
    request_log: Path | None = _setting(
        None, "file that gets one JSON line for each finished request; /dev/stderr is the log"
    )
    log_format: str = _setting("text", "how the server's own log is written", choices=("text", "json"))
    log_prompts: bool = _setting(False, "write prompts and texts to the request log, too")
    otlp_endpoint: str = _setting("", "where OpenTelemetry traces go, such as http://127.0.0.1:4317; empty is nowhere")


@dataclass(frozen=True, slots=True)
class ServeOptions(_Checked):
    """Options of the gRPC server."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(50051, "port to listen on; 0 takes a free one", min=0, max=65535)
    frontends: int = _setting(1, "processes that answer clients, on one port and for one engine", min=1, max=64)
    default_speculation: str = _setting("on", "speculation of requests that do not ask", choices=("on", "off"))
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    time: TimeOptions = field(default_factory=TimeOptions)
    security: SecurityOptions = field(default_factory=SecurityOptions)
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)

    def max_requests(self, max_batch_size: int) -> int:
        """Most live requests, in the batch and waiting for it, over all front-ends."""
        return max_batch_size + self.admission.max_queued_requests

    def message_bytes(self, context_tokens: int) -> int:
        """Largest message for a model with this context."""
        return self.admission.max_message_bytes or max(_LEAST_MESSAGE_BYTES, _BYTES_PER_TOKEN * context_tokens)
