"""Calls of a native module checked against the signatures that its docstrings give: what our doubles are held to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_HEAD = re.compile(r"^(?:\d+\. )?\w+\((?P<parameters>.*)\) -> ", re.MULTILINE)
_PARAMETER = re.compile(r"(\w+): ([\w.\[\]]+)")


class WrongCall(AssertionError):
    """A call that the real module would refuse."""


def check(trt: Any, function: Callable[..., Any], arguments: Sequence[Any], doubles: Sequence[type] = ()) -> None:
    """Arguments, without self, fit one of the function's overloads; `doubles` stand for any class of the module."""
    overloads = [_PARAMETER.findall(head["parameters"]) for head in _HEAD.finditer(function.__doc__ or "")]
    wanted = [[kind for name, kind in overload if name != "self"] for overload in overloads]
    needed = [sum("=" not in part for part in head["parameters"].split(", ")) - 1 for head in _heads(function)]
    for kinds, least in zip(wanted, needed, strict=True):
        fits = least <= len(arguments) <= len(kinds)
        pairs = zip(kinds, arguments, strict=False)
        if fits and all(_fits(trt, kind, value, tuple(doubles)) for kind, value in pairs):
            return
    raise WrongCall(f"{function.__name__} takes {wanted}, not {[type(value).__name__ for value in arguments]}")


def _heads(function: Callable[..., Any]) -> list[re.Match[str]]:
    return list(_HEAD.finditer(function.__doc__ or ""))


def _fits(trt: Any, kind: str, value: Any, doubles: tuple[type, ...]) -> bool:
    plain: dict[str, Callable[[Any], bool]] = {
        "int": lambda given: isinstance(given, int) and not isinstance(given, bool),
        "bool": lambda given: isinstance(given, bool),
        "str": lambda given: isinstance(given, str),
        "tuple": lambda given: isinstance(given, tuple),
        "list": lambda given: isinstance(given, list),
        "buffer": lambda given: isinstance(given, bytes | bytearray | memoryview),
        "function": callable,
    }
    name = kind.split(".")[-1]
    if kind in plain:
        return plain[kind](value)
    if kind.startswith("List["):
        return isinstance(value, list | tuple) and all(_fits(trt, kind[5:-1], item, doubles) for item in value)
    if name == "Dims":
        return isinstance(value, list | tuple) and all(plain["int"](size) for size in value)
    return isinstance(value, (getattr(trt, name), *doubles))
