"""What an operator can set on a server, each declared once.

Flags, variables, the file of settings, their help and their checks derive from the fields' metadata
(`trtspec.declared`). A group is a table of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.declared import check_values, flag
from trtspec.errors import ConfigError

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
        0, "bytes of the requests that wait in one front-end; 0 is sixteen of the largest message", min=0
    )
    max_message_bytes: int = _setting(0, "largest message; 0 is what the model's context needs, 1 MiB at least", min=0)
    queue_seconds: float = _setting(
        0.0, "a request that has waited for so long is refused; 0 lets it wait as long as its client does", min=0
    )
    max_client_requests: int = _setting(0, "live requests of one client, over all front-ends; 0 is no bound", min=0)
    client_requests_per_minute: int = _setting(
        0, "requests that one client may send in a minute, over all front-ends; 0 is no bound", min=0
    )
    client_tokens_per_minute: int = _setting(
        0,
        "tokens of prompts and answers that one client may use in a minute, over all front-ends; 0 is no bound",
        min=0,
    )
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
    least_ping_seconds: float = _setting(5.0, "clients that ping a silent stream more often are cut off", min=0)
    max_connection_age_seconds: float = _setting(
        0.0, "connections are closed politely at this age, give or take a tenth, so that clients spread; 0 never", min=0
    )
    max_connection_grace_seconds: float = _setting(
        0.0, "time that the streams of such a connection have to end; 0 lets them end by themselves", min=0
    )

    def __post_init__(self) -> None:
        # Python 3.10 loses the class in `super()` of dataclasses with slots.
        check_values(self)
        age, grace = self.max_connection_age_seconds, self.max_connection_grace_seconds
        if grace and not age:
            raise ConfigError(
                f"--max-connection-grace-seconds is {grace:g} and --max-connection-age-seconds is 0, which closes no "
                "connection; give both or neither"
            )
        if 0 < grace < self.drain_seconds:
            raise ConfigError(
                f"--max-connection-grace-seconds is {grace:g} and --drain-seconds is {self.drain_seconds:g}: streams "
                "of an old connection would get less time than those of a server that stops; raise it, or leave it at "
                "0, which lets every stream end"
            )


@dataclass(frozen=True, slots=True)
class SecurityOptions(_Checked):
    """Who is believed to be whom."""

    tls_certificate: Path | None = _setting(None, "certificate chain of the server, PEM; read again when it changes")
    tls_key: Path | None = _setting(None, "private key of the certificate, PEM")
    tls_client_ca: Path | None = _setting(
        None, "certificates, PEM, that clients' certificates must be signed by (mTLS); read again when it changes"
    )
    tokens: Path | None = _setting(
        None, "file of bearer tokens of clients, from `trtspec token`; read again when it changes"
    )
    admin_tokens: Path | None = _setting(None, "file of bearer tokens of the admin port")
    allow_insecure: bool = _setting(
        False, "let other machines reach a port without TLS or tokens, where the network does their work"
    )
    log_error_messages: bool = _setting(
        False, "write into the log what internal errors say, which may quote prompts; without it, where they happened"
    )
    reflection: str = _setting(
        "auto",
        "port on which grpcurl can ask for the interface; auto is main on a loopback address, else admin",
        choices=("auto", "main", "admin", "off"),
    )
    admin_host: str = _setting("127.0.0.1", "address of the admin port")
    admin_port: int = _setting(
        -1, "port of the service trtspec.v1.Admin; 0 takes a free one, -1 is none", min=-1, max=65535
    )

    def __post_init__(self) -> None:
        check_values(self)
        for given in ("tls_certificate", "tls_key", "tls_client_ca"):
            if getattr(self, given) is not None and not self.encrypted:
                raise ConfigError(
                    f"{flag(given)} is given, and TLS needs both --tls-certificate and --tls-key; give both, or none"
                )

        if self.reflection == "admin" and self.admin_port < 0:
            raise ConfigError("--reflection admin needs the admin port; give --admin-port, or say auto, main or off")

    @property
    def encrypted(self) -> bool:
        """Connections are encrypted, and the server shows a certificate."""
        return self.tls_certificate is not None and self.tls_key is not None


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
    log_prompts: bool = _setting(False, "write prompts to the request log, too")
    otlp_endpoint: str = _setting("", "where OpenTelemetry traces go, such as http://127.0.0.1:4317; empty is nowhere")

    def __post_init__(self) -> None:
        check_values(self)
        if self.log_prompts and self.request_log is None:
            raise ConfigError("--log-prompts says what the request log has, and there is none; add --request-log FILE")
        if self.metrics_compatibility != "none" and self.status_port < 0:
            raise ConfigError(
                f"--metrics-compatibility is {self.metrics_compatibility}, and no port has metrics; add "
                "--status-port PORT"
            )


@dataclass(frozen=True, slots=True)
class ServeOptions(_Checked):
    """Options of the gRPC server."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(50051, "port to listen on; 0 takes a free one", min=0, max=65535)
    frontends: int = _setting(1, "processes that answer clients, on one port and for one engine", min=1, max=64)
    default_speculation: str = _setting("on", "speculation of requests that do not ask", choices=("on", "off"))
    smg: bool = _setting(False, "answer the SMG gateway, too: its TrtllmService on the same port (needs the extra smg)")
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    time: TimeOptions = field(default_factory=TimeOptions)
    security: SecurityOptions = field(default_factory=SecurityOptions)
    telemetry: TelemetryOptions = field(default_factory=TelemetryOptions)

    def message_bytes(self, context_tokens: int) -> int:
        """Largest message for a model with this context."""
        return self.admission.max_message_bytes or max(_LEAST_MESSAGE_BYTES, _BYTES_PER_TOKEN * context_tokens)
