"""The `trtspec` command and its subcommands."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from trtspec import __version__
from trtspec.cli import admin, generate, info, serve, token
from trtspec.errors import WRONG_INPUT, TrtspecError

_BROKEN_PIPE = 141
"""What a shell shows for a program that ended because nobody read its output any more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for wrong input, 1 for a failure, 130 after Ctrl-C."""
    options = parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, WRONG_INPUT) else 1
    except BrokenPipeError:
        # What is still in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    result = argparse.ArgumentParser(prog="trtspec", description="Serve language models with speculative decoding.")
    result.add_argument("--version", action="version", version=f"trtspec {__version__}")
    commands = result.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (serve, generate, admin, info, token):
        module.add_parser(commands)
    return result
