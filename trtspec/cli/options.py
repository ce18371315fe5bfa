"""Dataclass fields to command-line flags and back: each option is declared once, in its dataclass."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser, kind: type, title: str) -> None:
    """Add a flag for every field that has a help text."""
    group = parser.add_argument_group(title)
    hints = get_type_hints(kind)
    for item in fields(kind):
        if "help" in item.metadata:
            group.add_argument("--" + item.name.replace("_", "-"), **_argument(item, hints[item.name]))


def from_options(kind: type[T], options: argparse.Namespace, **more: Any) -> T:
    """Build the dataclass from parsed flags; its own checks run here."""
    names = [item.name for item in fields(kind) if "help" in item.metadata]  # type: ignore[arg-type] # any dataclass
    return kind(**{name: getattr(options, name) for name in names}, **more)


def _argument(item: Field[Any], hint: Any) -> dict[str, Any]:
    """A field that is None unless given has the default that its help tells in its metadata."""
    assert item.default is not MISSING, f"{item.name} needs a default to be a flag"
    (kind,) = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    told = item.metadata.get("default", item.default)
    if kind is bool:
        action = argparse.BooleanOptionalAction if told else "store_true"
        default = " (default: on for embedded engines)" if item.default is None else ""
        return {"action": action, "default": item.default, "help": item.metadata["help"] + default}
    return {
        "type": kind,
        "default": item.default,
        "choices": item.metadata.get("choices"),
        "metavar": None if "choices" in item.metadata else kind.__name__.upper(),
        "help": f"{item.metadata['help']} (default: {item.metadata.get('told', told)})",
    }
