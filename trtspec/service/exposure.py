"""Whether a port may be open to other machines: not without protection, unless the operator says so."""

from __future__ import annotations

import logging

from trtspec.errors import ConfigError
from trtspec.loopback import is_loopback
from trtspec.service.options import SecurityOptions, ServeOptions

_log = logging.getLogger(__name__)

_WAY_OUT = (
    "give --tls-certificate and --tls-key, with --tokens or --tls-client-ca; or listen on 127.0.0.1; or say "
    "--allow-insecure where the network does their work"
)

_ADMIN = (
    "whoever reaches the admin port can stop this server; give --admin-tokens with --tls-certificate and --tls-key, or "
    "listen on 127.0.0.1, or say --allow-insecure where the network keeps others out"
)


def check_exposure(host: str, protected: bool, security: SecurityOptions, flag: str, way_out: str) -> None:
    """Refuse an address that other machines reach, for a port without protection. Raises `ConfigError`.

    `flag` is how the address was set, and `way_out` what would protect it.
    """
    if not protected and not security.allow_insecure and not is_loopback(host):
        raise ConfigError(f"{flag} {host} can be reached from other machines, and {way_out}")


def check_main_port(options: ServeOptions) -> None:
    """Refuse a main port without TLS where others reach it. Raises `ConfigError`.

    Without TLS tokens protect nothing there: whoever sees one request may send the next one.
    """
    security = options.security
    open_ = "there is neither TLS nor a token" if security.tokens is None else "tokens would travel in plain text"
    check_exposure(options.host, security.encrypted, security, "--host", f"{open_}; {_WAY_OUT}")


def check_admin_port(options: ServeOptions) -> None:
    """Refuse an admin port that others could use where they reach it. Raises `ConfigError`."""
    security = options.security
    if security.admin_port >= 0:
        protected = security.encrypted and (security.admin_tokens is not None or security.tls_client_ca is not None)
        check_exposure(security.admin_host, protected, security, "--admin-host", _ADMIN)


def warn_of_strangers(options: ServeOptions) -> None:
    """Say so where those may call from other machines who cannot prove who they are."""
    security = options.security
    proven = security.tokens is not None or security.tls_client_ca is not None
    if not proven and not security.allow_insecure and not is_loopback(options.host):
        _log.warning(
            "everybody who reaches %s may call: there are neither --tokens nor --tls-client-ca; --allow-insecure says "
            "that this is meant",
            options.host,
        )
