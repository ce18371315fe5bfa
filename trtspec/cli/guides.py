"""Flags that say what the answer must conform to; schemas, tags and grammars may be in files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trtspec.cli.arguments import utf8


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags, of which one may be given."""
    group = parser.add_mutually_exclusive_group()
    text = "the answer conforms to this JSON schema"
    group.add_argument("--json-schema", type=_json, metavar="FILE|JSON", help=text)
    group.add_argument("--json-object", action="store_true", help="the answer is a JSON object or array")
    group.add_argument("--regex", type=utf8, metavar="TEXT", help="this regular expression matches the whole answer")
    group.add_argument("--grammar", type=_grammar, metavar="FILE|EBNF", help="the answer is of this EBNF grammar")
    text = "parts of the answer conform to this structural tag"
    group.add_argument("--structural-tag", type=_json, metavar="FILE|JSON", help=text)
    text = "the answer is this text, or another one that is given so; may be repeated"
    group.add_argument("--choice", type=utf8, metavar="TEXT", action="append", help=text)


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The client's options of these flags."""
    names = ("json_schema", "json_object", "regex", "grammar", "structural_tag", "choice")
    return {name: getattr(options, name) for name in names if getattr(options, name)}


def _json(text: str) -> str:
    return text if text.lstrip()[:1] in ("{", "[", "") or text in ("true", "false") else _file(text)


def _grammar(text: str) -> str:
    return utf8(text) if "::=" in text else _file(text)


def _file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{name!r} is no such text, and no file that can be read ({error})") from None
