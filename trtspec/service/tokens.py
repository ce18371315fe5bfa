"""A file of bearer tokens: who holds which. Tokens are compared in constant time, and never logged.

Each line is `NAME TOKEN` or `NAME sha256:HEX`; `#` begins a comment. A name may have several lines, so that its token
can be exchanged while both are good.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import ConfigError
from trtspec.service.checks import MAX_LABEL_CHARACTERS
from trtspec.service.watched import Watched, content, warn_if_open

_HASHED = "sha256:"
_LEAST_CHARACTERS = 16
_TOKEN = re.compile(r"[!-~]+")
"""What a header can carry: visible ASCII."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line: a name, and the SHA-256 of its token."""

    name: str
    digest: bytes


class TokenFile:
    """Tokens by name. The file is read again when it changes, and a bad change is logged and not taken."""

    def __init__(self, path: Path, flag: str) -> None:
        """Read it. Raises `ConfigError`."""
        self._watched = Watched(f"the tokens of {flag}", [path], lambda: parse(content(path, flag), f"{flag} {path}"))
        warn_if_open(path, flag)

    def holder(self, token: str) -> str | None:
        """The name that a token belongs to."""
        digest, found = digest_of(token), None
        # All of them, so that the time does not tell which one it was, or whether it was one.
        for entry in self._watched.current():
            if hmac.compare_digest(entry.digest, digest):
                found = entry.name
        return found

    def look(self) -> None:
        """Take a new file."""
        self._watched.current()


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> bytes:
    """What stands for a token in a file: a plain hash suffices, for tokens are random and long."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def line_of(name: str, token: str) -> str:
    """The line of a token, from which nobody can learn it."""
    return f"{name} {_HASHED}{digest_of(token).hex()}"


def parse(data: bytes, source: str) -> tuple[Entry, ...]:
    """The entries of a file. Raises `ConfigError`, which names the line and not what is in it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 from byte {error.start} on") from error
    entries: dict[bytes, Entry] = {}
    for number, entry in _entries(text, source):
        if entry.digest in entries:
            raise ConfigError(f"{source}, line {number}: the token stands above already; each belongs to one name")
        entries[entry.digest] = entry
    if not entries:
        raise ConfigError(f"{source} holds no token, so nobody could call; make one with: trtspec token NAME")
    return tuple(entries.values())


def _entries(text: str, source: str) -> Iterator[tuple[int, Entry]]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise ConfigError(f"{source}, line {number} has {len(words)} words; it must be NAME TOKEN")
        check_name(words[0], f"{source}, line {number}: the name")
        yield number, Entry(words[0], _digest(words[1], f"{source}, line {number}"))


def check_name(name: str, what: str) -> None:
    """Refuse a name that could not be a caller's."""
    if not name or len(name) > MAX_LABEL_CHARACTERS or not name.isprintable() or len(name.split()) != 1:
        raise ConfigError(f"{what} must have 1 to {MAX_LABEL_CHARACTERS} printable characters and no space")
    if name.startswith("#"):
        raise ConfigError(f"{what} begins with #, as comments do; choose another one")


def _digest(word: str, where: str) -> bytes:
    if word.startswith(_HASHED):
        found = re.fullmatch("[0-9a-fA-F]{64}", word.removeprefix(_HASHED))
        if found is None:
            raise ConfigError(f"{where}: {_HASHED} must be followed by 64 hexadecimal digits")
        return bytes.fromhex(found.group())
    if len(word) < _LEAST_CHARACTERS or not _TOKEN.fullmatch(word):
        raise ConfigError(
            f"{where}: a token needs at least {_LEAST_CHARACTERS} visible ASCII characters; make one with: "
            "trtspec token NAME"
        )
    return digest_of(word)
