"""Which server a command asks, and what it shows that server: flags, and a token that is on no command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import grpc

from trtspec.cli.arguments import utf8
from trtspec.client import AdminClient, Client, RequestFailed
from trtspec.errors import ConfigError

DEFAULT_SERVER = "127.0.0.1:50051"
TOKEN_VARIABLE = "TRTSPEC_TOKEN"
ADMIN_SERVER = "127.0.0.1:50052"
ADMIN_TOKEN_VARIABLE = "TRTSPEC_ADMIN_TOKEN"


def add_connection(
    parser: argparse.ArgumentParser, server: str = DEFAULT_SERVER, variable: str = TOKEN_VARIABLE
) -> None:
    """Add the flags."""
    group = parser.add_argument_group("connection")
    group.add_argument("--server", type=utf8, default=server, metavar="HOST:PORT", help=f"default: {server}")
    group.add_argument("--tls", action="store_true", help="encrypt; the server's certificate must be of a known CA")
    group.add_argument(
        "--ca", type=Path, metavar="FILE", help="PEM file of the CA that the server's certificate is of; implies --tls"
    )
    group.add_argument("--certificate", type=Path, metavar="FILE", help="PEM file that shows who you are (mTLS)")
    group.add_argument("--key", type=Path, metavar="FILE", help="private key of --certificate")
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file that holds your bearer token and nothing else; without it, the variable {variable}",
    )
    group.add_argument(
        "--allow-insecure", action="store_true", help="send the token in plain text, where the network encrypts"
    )


def client(options: argparse.Namespace) -> Client:
    """A client of the server that was named. Raises `ConfigError`."""
    return Client(options.server, **_security(options, TOKEN_VARIABLE))


def admin_client(options: argparse.Namespace) -> AdminClient:
    """A client of the admin port that was named. Raises `ConfigError`."""
    return AdminClient(options.server, **_security(options, ADMIN_TOKEN_VARIABLE))


def _security(options: argparse.Namespace, variable: str) -> dict[str, Any]:
    return {
        "tls": options.tls,
        "root_certificates": options.ca,
        "certificate": options.certificate,
        "key": options.key,
        "token": _token(options.token_file, variable),
        "allow_insecure": options.allow_insecure,
    }


def way_in(error: RequestFailed) -> str:
    """What to do about a refusal of the caller; empty for other errors."""
    if error.status is not grpc.StatusCode.UNAUTHENTICATED:
        return ""
    return f"; ask the server's operator for a token, and give it with --token-file or {TOKEN_VARIABLE}"


def _token(file: Path | None, variable: str) -> str | None:
    if file is None:
        return os.environ.get(variable) or None
    try:
        token = file.expanduser().read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"--token-file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--token-file {file} holds no token: a token is ASCII") from error
    if len(token.split()) != 1:
        raise ConfigError(f"--token-file {file} must hold one token and nothing else")
    return token
