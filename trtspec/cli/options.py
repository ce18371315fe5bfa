"""Dataclass fields to command-line flags and back: each option is declared once, in its dataclass."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

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


def _argument(item: Field[Any], hint: type) -> dict[str, Any]:
    assert item.default is not MISSING, f"{item.name} needs a default to be a flag"
    if hint is bool:
        action = argparse.BooleanOptionalAction if item.default else "store_true"
        return {"action": action, "default": item.default, "help": item.metadata["help"]}
    return {
        "type": hint,
        "default": item.default,
        "choices": item.metadata.get("choices"),
        "metavar": None if "choices" in item.metadata else hint.__name__.upper(),
        "help": f"{item.metadata['help']} (default: {item.default})",
    }
