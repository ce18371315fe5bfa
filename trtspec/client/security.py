"""What a client shows a server, and how it knows that it is the right one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import grpc

from trtspec.errors import ConfigError
from trtspec.loopback import reaches_loopback

File = str | PathLike[str]
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection is protected."""

    tls: bool = False
    root_certificates: File | None = None
    """PEM file of the authorities that may vouch for the server; None for those that gRPC brings."""
    certificate: File | None = None
    key: File | None = None
    """PEM files that show who this client is (mTLS)."""
    token: str | None = None
    allow_insecure: bool = False
    """Send the token in plain text to another machine, where the network encrypts."""

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            raise ConfigError("a client certificate needs its key, and a key its certificate; give both, or none")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigError("the token must be of visible ASCII characters; is it the whole token, and nothing else?")

    @property
    def encrypted(self) -> bool:
        return self.tls or self.root_certificates is not None or self.certificate is not None

    @property
    def metadata(self) -> Metadata:
        """What goes with each call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token.strip()}"),)

    def channel(self, address: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        """A connection. Raises `ConfigError` where a file cannot be read or a token would be shown to the network."""
        if self.encrypted:
            return grpc.aio.secure_channel(address, self._credentials(), options=options)
        if self.token is not None and not self.allow_insecure and not reaches_loopback(address):
            raise ConfigError(
                f"the token would travel to {address} in plain text; connect with TLS (--tls, or tls=True), or allow "
                "it (--allow-insecure, or allow_insecure=True) where the network encrypts"
            )
        return grpc.aio.insecure_channel(address, options=options)

    def _credentials(self) -> grpc.ChannelCredentials:
        files = (self.root_certificates, self.key, self.certificate)
        return grpc.ssl_channel_credentials(*(None if file is None else _pem(file) for file in files))


def _pem(file: File) -> bytes:
    try:
        found = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in found:
        raise ConfigError(f"{file} is no PEM file")
    return found
