"""What an operator can set on a server, each declared once.

Flags, their help and their checks derive from the fields' metadata (`trtspec.cli.options`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from trtspec.errors import ConfigError

_LEAST_MESSAGE_BYTES = 1 << 20
_BYTES_PER_TOKEN = 32
"""Text of a prompt takes about four bytes a token; ids take at most five. The rest is room for odd languages."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the gRPC server."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=50051, metadata={"help": "port to listen on; 0 takes a free one", "min": 0, "max": 65535})
    frontends: int = field(
        default=1,
        metadata={"help": "processes that answer clients, on one port and for one engine", "min": 1, "max": 64},
    )
    max_queued_requests: int = field(
        default=64, metadata={"help": "requests that may wait for a place in the batch, over all front-ends", "min": 0}
    )
    max_message_bytes: int = field(
        default=0, metadata={"help": "largest message; 0 is what the model's context needs, 1 MiB at least", "min": 0}
    )
    drain_seconds: float = field(
        default=30.0, metadata={"help": "time that running requests have to end after SIGTERM", "min": 0}
    )
    default_speculation: str = field(
        default="on", metadata={"help": "speculation of requests that do not ask", "choices": ("on", "off")}
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value, flag = getattr(self, item.name), "--" + item.name.replace("_", "-")
            low, high = item.metadata.get("min", value), item.metadata.get("max", value)
            if not low <= value <= high:
                allowed = f"{low} to {high}" if "max" in item.metadata else f"{low} or more"
                raise ConfigError(f"{flag} is {value}; allowed is {allowed}")
            choices = item.metadata.get("choices", (value,))
            if value not in choices:
                raise ConfigError(f"{flag} is {value}; allowed is {' or '.join(choices)}")

    def max_requests(self, max_batch_size: int) -> int:
        """Most live requests, in the batch and waiting for it, over all front-ends."""
        return max_batch_size + self.max_queued_requests

    def message_bytes(self, context_tokens: int) -> int:
        """Largest message for a model with this context."""
        return self.max_message_bytes or max(_LEAST_MESSAGE_BYTES, _BYTES_PER_TOKEN * context_tokens)
