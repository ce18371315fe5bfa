"""What protects a server's port, made of its options: certificates, tokens, and who looks after both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from trtspec.service.access import access_of
from trtspec.service.callers import ANYONE, Access
from trtspec.service.certificates import Certificates, Files
from trtspec.service.exposure import check_admin_port, check_main_port
from trtspec.service.options import ServeOptions
from trtspec.service.tls import credentials
from trtspec.service.tokens import TokenFile

_LOOK_SECONDS = 10.0
"""Files are looked at for each connection and each request, too; this is for hours without either."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Of one process: every process that listens has its own."""

    access: Access = ANYONE
    certificates: Certificates | None = None
    tokens: TokenFile | None = None
    admin: Access = ANYONE
    admin_tokens: TokenFile | None = None

    def credentials(self) -> grpc.ServerCredentials | None:
        """For one port; None is plain text."""
        return None if self.certificates is None else credentials(self.certificates)

    def certificate_end(self) -> float | None:
        """When the certificate in use ends, Unix time; None without one."""
        return None if self.certificates is None else self.certificates.state.not_after.timestamp()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Look after certificates and tokens meanwhile."""
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for item in (self.certificates, self.tokens, self.admin_tokens):
                if item is not None:
                    await asyncio.to_thread(item.look)


NONE = Protection()


def protect(options: ServeOptions) -> Protection:
    """Read what the options name. Raises `ConfigError` for what is wrong with it, and for a port left open."""
    check_main_port(options)
    check_admin_port(options)
    security, files = options.security, Files.of(options.security)
    tokens, admin_tokens = _tokens(security.tokens, "--tokens"), _tokens(security.admin_tokens, "--admin-tokens")
    certificates = None if files is None else Certificates(files)
    ways = [access_of(item, security.tls_client_ca) for item in (tokens, admin_tokens)]
    return Protection(ways[0], certificates, tokens, ways[1], admin_tokens)


def _tokens(path: Path | None, flag: str) -> TokenFile | None:
    return None if path is None else TokenFile(path, flag)
