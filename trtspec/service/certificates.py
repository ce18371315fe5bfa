"""The certificates of a port: checked before they are used, exchanged without a restart, and watched as they grow old.

It does not know gRPC (`tls` does). Streams that live keep the connection that they have; a new certificate is for those
that come.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from trtspec.errors import ConfigError
from trtspec.service.options import SecurityOptions
from trtspec.service.watched import Watched, content, warn_if_open

_log = logging.getLogger(__name__)

_CERTIFICATE, _KEY, _CLIENT_CA = "--tls-certificate", "--tls-key", "--tls-client-ca"
_NEAR = timedelta(days=14)
_NEAR_SHARE = 5
"""A certificate is near its end in the last fifth of its life, and in its last two weeks at most: those who renew do so
when a third is left, be it of a year or of an hour."""
_REMIND_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class CertificateState:
    """What there is to know of the certificate in use."""

    subject: str
    not_before: datetime
    not_after: datetime
    """When the first certificate of its chain expires."""

    def left(self, now: datetime) -> timedelta:
        """Time until it expires; negative afterwards."""
        return self.not_after - now

    def valid(self, now: datetime) -> bool:
        return self.not_before <= now <= self.not_after

    def near(self, now: datetime) -> bool:
        """It expires soon, or has."""
        return self.left(now) < min(_NEAR, (self.not_after - self.not_before) / _NEAR_SHARE)


@dataclass(frozen=True, slots=True)
class Material:
    """Certificates and key that belong together, as PEM."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    state: CertificateState


@dataclass(frozen=True, slots=True)
class Files:
    """Where they are."""

    certificate: Path
    key: Path
    client_ca: Path | None

    @classmethod
    def of(cls, security: SecurityOptions) -> Files | None:
        """The files that were set, None for no TLS."""
        if security.tls_certificate is None or security.tls_key is None:
            return None
        return cls(security.tls_certificate, security.tls_key, security.tls_client_ca)

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


class Certificates:
    """The certificates in use."""

    def __init__(self, files: Files) -> None:
        """Read them. Raises `ConfigError`, but not where they are out of date: the next ones are waited for."""
        self.mutual = files.client_ca is not None
        self._watched = Watched("the certificates in use", files.paths, lambda: read(files), _check_in_time)
        self._told: tuple[CertificateState, str] | None = None
        self._told_at = 0.0
        warn_if_open(files.key, _KEY)
        self.look()

    def current(self) -> Material:
        """The newest good ones."""
        return self._watched.current()

    @property
    def state(self) -> CertificateState:
        """Of the certificate in use."""
        return self.current().state

    @property
    def problem(self) -> str:
        """Why the files as they are now are not in use; empty where they are."""
        return self._watched.problem

    def look(self) -> None:
        """Take new files, and warn where the certificate in use is near its end: at once, and then once a day."""
        state, now = self.state, datetime.now(timezone.utc)
        what = _warning(state, now)
        if what and (self._told != (state, what) or time.monotonic() - self._told_at > _REMIND_SECONDS):
            self._told, self._told_at = (state, what), time.monotonic()
            _log.warning("the TLS certificate of %s %s; put another one into its place", state.subject, what)


def read(files: Files) -> Material:
    """Read and check certificates and key. Raises `ConfigError`, which names the flag and the file."""
    chain, key = content(files.certificate, _CERTIFICATE), content(files.key, _KEY)
    certificates = _certificates(chain, _CERTIFICATE, files.certificate)
    if _public_key(certificates[0], files) != _public_half(key, files.key):
        raise ConfigError(
            f"{_KEY} {files.key} is not the key of {_CERTIFICATE} {files.certificate}; give two that belong together"
        )
    client_ca = None if files.client_ca is None else content(files.client_ca, _CLIENT_CA)
    if client_ca is not None and files.client_ca is not None:
        _certificates(client_ca, _CLIENT_CA, files.client_ca)
    return Material(chain, key, client_ca, _state(certificates))


def _certificates(pem: bytes, flag: str, path: Path) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigError(f"{flag} {path} holds no whole PEM certificate ({error})") from error
    # One that is cut off in the middle of the file would be passed over.
    if len(found) != pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise ConfigError(f"{flag} {path} holds a PEM certificate that is cut off")
    return found


def _public_key(certificate: x509.Certificate, files: Files) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{_CERTIFICATE} {files.certificate} is of a kind that is not known ({error})") from error


def _public_half(pem: bytes, path: Path) -> bytes:
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise ConfigError(f"{_KEY} {path} is encrypted; give it without a password") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        # Not the library's own words: they might quote the key.
        raise ConfigError(f"{_KEY} {path} holds no whole PEM private key") from error
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _state(chain: list[x509.Certificate]) -> CertificateState:
    subject = chain[0].subject.rfc4514_string() or f"serial number {chain[0].serial_number}"
    begins = max(item.not_valid_before_utc for item in chain)
    return CertificateState(subject, begins, min(item.not_valid_after_utc for item in chain))


def _check_in_time(material: Material) -> None:
    """Refuse certificates that no client would take."""
    state, now = material.state, datetime.now(timezone.utc)
    if not state.valid(now):
        raise ConfigError(f"the new TLS certificate of {state.subject} {_warning(state, now)}")


def _warning(state: CertificateState, now: datetime) -> str:
    """What is wrong with its dates; empty where nothing is."""
    if now < state.not_before:
        return f"is valid from {_date(state.not_before)} on"
    if not state.valid(now):
        return f"expired on {_date(state.not_after)}"
    return f"expires on {_date(state.not_after)}" if state.near(now) else ""


def _date(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")
