"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

NOW = datetime.now(timezone.utc).replace(microsecond=0)
YEAR = timedelta(days=365)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def encrypted_key_pem(self, password: bytes) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Both as files that nobody else can read; for the key it matters."""
        paths = directory / f"{name}.pem", directory / f"{name}.key"
        for path, content in zip(paths, (self.pem, self.key_pem), strict=True):
            replace(path, content)
        return paths


def replace(path: Path, content: bytes) -> None:
    """Put another file into the place of one, as those do who do it well."""
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(path)


def issue(
    name: str,
    by: Issued | None = None,
    alternatives: tuple[str, ...] = ("localhost",),
    begins: datetime = NOW - YEAR,
    ends: datetime = NOW + YEAR,
) -> Issued:
    """A certificate by an authority; without one, an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    issuer = by.certificate.subject if by else subject
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begins, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    if by is not None and alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(_general_name, alternatives)]), False)
    return Issued(builder.sign(by.key if by else key, hashes.SHA256()), key)


def _general_name(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
