"""Types of the table as text: whether a value has one, and which class or default a text names."""

from __future__ import annotations

import ast
import datetime
import pathlib
import sys
from typing import Any

_BUILT_IN = {"int": int, "str": str, "bytes": bytes, "list": list, "dict": dict, "set": set, "object": object}
CLASSES: dict[str, type] = {}
"""Declared classes by symbol."""


class Unlisted:
    """Stands for a default whose class the table does not describe."""


def fits(text: str, value: Any, near: str) -> bool:
    """Whether a value has a type of the table; names are looked up near a symbol."""
    if text.startswith("Optional[") and text.endswith("]"):
        return value is None or fits(text[9:-1], value, near)
    if len(options := _split(text, "|")) > 1:
        return any(fits(option, value, near) for option in options)
    outer, _, inner = text.partition("[")
    kinds = _split(inner[:-1], ",") if inner else []
    match outer:
        case "any":
            return True
        case "bool":
            return isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "Callable":
            return callable(value)
        case "PromptInputs":
            return isinstance(value, str | list | dict)
        case "datetime.timedelta" | "pathlib.Path":
            return isinstance(value, datetime.timedelta if outer == "datetime.timedelta" else pathlib.Path)
        case "torch.Tensor":
            return isinstance(value, sys.modules["torch"].Tensor) if "torch" in sys.modules else False
        case "list" | "set":
            return isinstance(value, _BUILT_IN[outer]) and all(fits(kinds[0], item, near) for item in value if kinds)
        case "dict" | "Mapping" if outer == "dict" or kinds:
            pairs = value.items() if isinstance(value, dict) and kinds else ()
            return isinstance(value, dict) and all(
                fits(kind, item, near) for pair in pairs for kind, item in zip(kinds, pair, strict=True)
            )
    found = _BUILT_IN.get(outer) or lookup(outer, near)
    return found is not None and isinstance(value, found)


def lookup(name: str, near: str) -> type | None:
    """The declared class of a name: that of the same module, or any."""
    found = [symbol for symbol in sorted(CLASSES) if symbol.rpartition(".")[2] == name]
    nearest = [symbol for symbol in found if near.startswith(symbol.rpartition(".")[0] + ".")]
    return CLASSES[max(nearest, key=len)] if nearest else CLASSES[found[0]] if found else None


def evaluate(text: str | None, near: str) -> Any:
    """A default, new for each call."""
    try:
        return ast.literal_eval(text or "None")
    except ValueError:
        name, _, member = (text or "").removesuffix("()").partition(".")
        found = lookup(name, near)
        if found is None:
            return Unlisted()
        return getattr(found, member) if member else found()


def default_of(text: str, near: str) -> Any:
    """The value of an attribute that no parameter sets."""
    simple = {"int": 0, "float": 0.0, "bool": False, "str": "", "datetime.timedelta": datetime.timedelta()}
    if text in simple:
        return simple[text]
    if text.startswith("list"):
        return []
    found = lookup(text, near)
    rows: list[dict[str, Any]] = getattr(found, "_rows", [])
    return found() if found is not None and rows and not any(row["params"] for row in rows) else None


def _split(text: str, by: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == by and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
