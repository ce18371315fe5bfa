"""Certificates as gRPC takes them: it asks for newer ones before each handshake."""

from __future__ import annotations

import grpc

from trtspec.service.certificates import Certificates, Material


def credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials of one port. Where there is a CA for clients, those without a certificate of it cannot connect."""
    given = certificates.current()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        """Called in a thread of gRPC's for each connection that comes; None leaves what it has."""
        nonlocal given
        current = certificates.current()
        if current is given:
            return None
        given = current
        return _configuration(current)

    # The published types know nothing of None, which the documentation asks for.
    return grpc.dynamic_ssl_server_credentials(_configuration(given), newer, certificates.mutual)  # type: ignore[arg-type]


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.client_ca)
