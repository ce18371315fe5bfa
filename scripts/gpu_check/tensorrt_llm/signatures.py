"""The installed package beside the table of what we call: names, parameters in their order, members, attributes.

Bound C++ functions tell their signatures as text, of which the names of parameters are read.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "typings" / "signatures.json"
Row = Mapping[str, Any]
_BOUND = ("self", "cls")
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


@dataclass(frozen=True, slots=True)
class Found:
    """One symbol of the table in the installed package."""

    symbol: str
    told: str | None
    """Its signature as the package tells it, or its members; None where it tells nothing."""
    differences: tuple[str, ...] = ()


def compare() -> list[Found]:
    """Every symbol of the table, overloads together."""
    rows: dict[str, list[Row]] = {}
    for row in json.loads(TABLE.read_text())["symbols"]:
        rows.setdefault(row["symbol"], []).append(row)
    return [_compare(symbol, overloads) for symbol, overloads in rows.items()]


def _compare(symbol: str, rows: Sequence[Row]) -> Found:
    try:
        item = resolve(symbol)
    except (ImportError, AttributeError):
        return Found(symbol, None, ("it is not there",))
    if rows[0]["kind"] == "enum":
        return Found(symbol, ", ".join(map(str, dir(item))), tuple(_members(item, rows[0])))
    told = signatures(item)
    differences = [*_parameters(rows, told), *_attributes(item, rows[0])]
    return Found(symbol, "\n".join(told) or None, tuple(differences))


def resolve(symbol: str) -> Any:
    """Import as much of a dotted name as is a module, and look the rest up."""
    parts = symbol.split(".")
    for count in range(len(parts), 0, -1):
        try:
            item: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            item = getattr(item, name)
        return item
    raise ImportError(symbol)


def signatures(item: Any) -> list[str]:
    """What an object tells of its parameters: of bound functions each overload, of others one."""
    told = getattr(item, "__nb_signature__", None) or getattr(getattr(item, "__init__", None), "__nb_signature__", None)
    if overloads := told:  # of nanobind
        return [str(overload[0]) for overload in overloads]
    try:
        return [str(inspect.signature(item))]
    except (TypeError, ValueError):
        return []


def names(signature: str) -> list[str]:
    """The parameters of a signature, stars and what follows their names left out."""
    start = signature.find("(")
    return [] if start < 0 else [name for part in _parts(signature[start + 1 :]) if (name := _name(part))]


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas of the outermost brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += _BRACKETS.get(letter, 0)
        if depth < 0:
            break
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part


def _name(part: str) -> str | None:
    found = re.match(r"\s*([A-Za-z_]\w*)", part)
    return found.group(1) if found else None


def _parameters(rows: Sequence[Row], told: Sequence[str]) -> Iterator[str]:
    """Names that an overload of ours has and none of theirs; places of those that are passed by place."""
    theirs = [[name for name in names(text) if name != "self"] for text in told]
    if not theirs:
        return
    for row in rows:
        params = [
            item for item in row["params"] if item["kind"] != "var_keyword" and item["name"] not in ("self", "cls")
        ]
        ours = [item["name"] for item in params]
        placed = [item["name"] for item in params if item["kind"] != "keyword_only" and item["required"]]
        if not any(set(ours) <= set(known) and known[: len(placed)] == placed for known in theirs):
            missing = sorted(set(ours) - set(max(theirs, key=lambda known: len(set(known) & set(ours)))))
            yield f"parameters differ{f', it lacks {missing}' if missing else ' in their order'}; it has {theirs}"


def _members(item: Any, row: Row) -> Iterator[str]:
    for value in row["values"]:
        name, _, number = value.partition("=")
        if not hasattr(item, name):
            yield f"member {name} is not there"
        elif number.isdecimal() and int(getattr(item, name)) != int(number):
            yield f"member {name} is {int(getattr(item, name))} and not {number}"


def _attributes(item: Any, row: Row) -> Iterator[str]:
    """Attributes of instances, as far as their class tells them."""
    fields = getattr(item, "model_fields", None) or getattr(item, "__annotations__", None) or {}
    for attribute in row.get("attributes") or ():
        name = attribute["name"]
        if inspect.isclass(item) and not (hasattr(item, name) or name in fields or _sets(item, name)):
            yield f"attribute {name} is not there"


def _sets(item: type, name: str) -> bool:
    """A class of Python that assigns it when it is made."""
    try:
        return f"self.{name}" in inspect.getsource(item)
    except (OSError, TypeError):
        return False
