"""`trtspec token`: a new bearer token, and the line that lets its holder in."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trtspec.errors import ConfigError

_EXAMPLES = """\
examples:
  trtspec token alice --append tokens > alice.token
  trtspec serve engines/mine --tokens tokens
  trtspec generate --token-file alice.token "Name three rivers."
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "token",
        help="make a bearer token for a client",
        description="Make a bearer token. Its line for the file of --tokens holds a hash, so that the token is nowhere "
        "but with its holder.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="whom limits and logs shall name; a name may have several tokens")
    parser.add_argument(
        "--append", type=Path, metavar="FILE", help="add the line to this file, and print the token alone"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the token, which cannot be shown again."""
    from trtspec.service.tokens import check_name, line_of, new_token

    check_name(options.name, "NAME")
    token = new_token()
    line = line_of(options.name, token)
    if options.append is None:
        print(f"# a line of the file of --tokens:\n{line}\n# for {options.name} alone:\n{token}")
    else:
        _append(options.append.expanduser(), line)
        print(token)
    return 0


def _append(path: Path, line: str) -> None:
    """Add a line in one write, so that a server that reads meanwhile sees all of it or nothing."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"--append {path} cannot be written: {error.strerror}") from error
    try:
        size = os.fstat(handle).st_size
        whole = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
        os.write(handle, f"{'' if whole else os.linesep}{line}\n".encode())
    finally:
        os.close(handle)
