"""Who is let in, by what a call shows: a bearer token, or the client certificate of its connection."""

from __future__ import annotations

from pathlib import Path

from trtspec.errors import Unauthenticated
from trtspec.service.callers import ANYONE, Access, Caller, Context
from trtspec.service.tokens import TokenFile

_SCHEME = "bearer"
_NAMES = ("x509_subject_alternative_name", "x509_common_name")
"""What gRPC calls the names in a certificate."""
_WAY_OUT = "send the metadata `authorization: Bearer TOKEN` with a token of this server"


class TokenAccess:
    """Implements `Access` by bearer tokens. A caller goes by its token's name, whatever else it shows."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    def caller(self, context: Context) -> Caller:
        name = self._tokens.holder(_bearer_token(context))
        if name is None:
            raise Unauthenticated(f"the bearer token is not known; {_WAY_OUT}")
        return Caller(name, authenticated=True)


class CertificateAccess:
    """Implements `Access` by the certificate that the handshake has verified: its first alternative name, which is
    where names belong, else its common name."""

    def caller(self, context: Context) -> Caller:
        proven = context.auth_context()
        names = [_text(name) for key in _NAMES for name in proven.get(key, ())]
        for name in names:
            if name and name.isprintable():
                return Caller(name, authenticated=True)
        raise Unauthenticated("the client's certificate has no name; it needs an alternative name or a common name")


def access_of(tokens: TokenFile | None, client_ca: Path | None) -> Access:
    """The strictest way that is set up."""
    if tokens is not None:
        return TokenAccess(tokens)
    return CertificateAccess() if client_ca is not None else ANYONE


def _bearer_token(context: Context) -> str:
    values = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    if len(values) != 1:
        raise Unauthenticated(f"the call has {len(values)} authorization entries and needs one; {_WAY_OUT}")
    scheme, _, token = _text(values[0]).partition(" ")
    if scheme.lower() != _SCHEME or not token.strip():
        raise Unauthenticated(f"the authorization is not a bearer token; {_WAY_OUT}")
    return token.strip()


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
