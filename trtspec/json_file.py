"""JSON files of an engine folder: read with a bound, and every value of the type of its field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_MOST_BYTES = 64 << 20
"""Of a file: far more than any engine needs, and little enough to be read whole."""
MOST = 2**31 - 1
"""Of a whole number: sizes beyond this are damage."""

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading such a file may raise, by way of this module and of looking into what it gave."""


def read_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """The object that a file holds. Raises one of `UNREADABLE`."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    value = json.loads(content.decode())
    if not isinstance(value, dict):
        raise TypeError(f"it holds {type(value).__name__} and no object")
    return value


def check_fields(instance: Any) -> None:
    """Refuse a dataclass whose values are not of the types of its fields. Raises `TypeError`, which names the field."""
    hints = get_type_hints(type(instance))
    for item in fields(instance):
        value = getattr(instance, item.name)
        if not _fits(value, hints[item.name]):
            raise TypeError(f"{item.name} is {value!r:.80}")


def _fits(value: Any, hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, arg) for arg in args)
    if hint is NoneType:
        return value is None
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint is int:
        return type(value) is int and -MOST <= value <= MOST
    if hint is str:
        return isinstance(value, str) and "\0" not in value and _encodes(value)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, args[0]) for item in value)
    if origin is not None:
        return isinstance(value, dict if issubclass(origin, Mapping) else origin)
    if is_dataclass(hint) and isinstance(value, hint):  # type: ignore[arg-type] # a class
        check_fields(value)
        return True
    return isinstance(value, hint)


def _encodes(text: str) -> bool:
    """JSON can spell half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
