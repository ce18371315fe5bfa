"""Settings as dataclass fields: each is declared once, with its help, its default and what is allowed.

A field's metadata may have `help`, `min`, `max`, `choices`, and for a field that is None unless it was given `default`
and `told`, which help texts show. A field without `help` is no setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from trtspec.errors import ConfigError


def flag(name: str) -> str:
    """How a field is spelt on the command line."""
    return "--" + name.replace("_", "-")


def settings(kind: type) -> Iterator[Field[Any]]:
    """The fields of a dataclass that an operator can set."""
    return (item for item in fields(kind) if "help" in item.metadata)


def groups(kind: type) -> Iterator[tuple[str, type]]:
    """The fields that are settings dataclasses themselves, with their types."""
    hints = get_type_hints(kind)
    return ((item.name, hints[item.name]) for item in fields(kind) if is_dataclass(hints[item.name]))


def value_type(kind: type, name: str) -> type:
    """The type of a setting's values: bool, int, float, str or Path."""
    hint = get_type_hints(kind)[name]
    (found,) = [item for item in get_args(hint) or (hint,) if item is not NoneType]
    assert found in (bool, int, float, str, Path), f"{name} cannot be set as {found}"
    return found  # type: ignore[no-any-return] # one of those above


def check_value(item: Field[Any], value: Any, named: str) -> None:
    """Refuse a value outside what the field allows, under the name by which it was set."""
    if value is None:
        return
    low, high = item.metadata.get("min", value), item.metadata.get("max", value)
    if not low <= value <= high:
        allowed = f"{low} to {high}" if "max" in item.metadata else f"{low} or more"
        raise ConfigError(f"{named} is {value}; allowed is {allowed}")
    choices = item.metadata.get("choices", (value,))
    if value not in choices:
        raise ConfigError(f"{named} is {value}; allowed is {', '.join(choices[:-1])} or {choices[-1]}")


def check_values(instance: Any) -> None:
    """Refuse what is outside of what the fields of a settings dataclass allow."""
    for item in settings(type(instance)):
        check_value(item, getattr(instance, item.name), flag(item.name))
