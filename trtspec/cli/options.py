"""Settings to command-line flags and back: each is declared once, in its dataclass (`trtspec.declared`)."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from trtspec.declared import flag, settings, value_type


def add_options(parser: argparse.ArgumentParser, kind: type, title: str) -> None:
    """Add a flag for every setting. One that is not given leaves nothing behind, so that its source can be told."""
    group = parser.add_argument_group(title)
    for item in settings(kind):
        group.add_argument(flag(item.name), default=argparse.SUPPRESS, **_argument(item, value_type(kind, item.name)))


def given(kind: type, options: argparse.Namespace) -> dict[str, Any]:
    """What was given of a group."""
    values = vars(options)
    return {item.name: values[item.name] for item in settings(kind) if item.name in values}


def _argument(item: Field[Any], kind: type) -> dict[str, Any]:
    """A field that is None unless given has the default that its help tells in its metadata."""
    assert item.default is not MISSING, f"{item.name} needs a default to be a flag"
    told = item.metadata.get("default", item.default)
    if kind is bool:
        default = " (default: on for embedded engines)" if item.default is None else f" (default: {_word(told)})"
        return {"action": argparse.BooleanOptionalAction, "help": item.metadata["help"] + default}
    shown = "none" if told in (None, "") else item.metadata.get("told", told)
    return {
        "type": kind,
        "choices": item.metadata.get("choices"),
        "metavar": None if "choices" in item.metadata else _METAVARS[kind],
        "help": f"{item.metadata['help']} (default: {shown})",
    }


_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "FILE"}


def _word(value: bool) -> str:
    return "on" if value else "off"
