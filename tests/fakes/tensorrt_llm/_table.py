"""Makes classes, enums and functions out of the signature table, as strict as compiled bindings are.

Every name that the double has is a row of `scripts/typings/signatures.json`, and every row of a declared module must be
there. It knows how arguments are bound and typed; what a value may be, and what a call does, is in the bodies it is
given.
"""

from __future__ import annotations

import enum
import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tensorrt_llm._types import CLASSES, default_of, evaluate, fits, lookup

Row = dict[str, Any]
_FILE = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "typings" / "signatures.json"


class ValidationError(TypeError, ValueError):
    """In place of pydantic's, which is a ValueError: here it is a TypeError too, as all wrong arguments are."""


@functools.cache
def table() -> dict[str, list[Row]]:
    """All rows by symbol; several are overloads, tried in order."""
    found: dict[str, list[Row]] = {}
    for row in json.loads(_FILE.read_text())["symbols"]:
        found.setdefault(row["symbol"], []).append(row)
    return found


class Declared:
    """Base of the classes of the table: attributes are those of the row, with their types and access."""

    _rows: list[Row] = []
    _access: Mapping[str, Row] = {}
    _renamed: Mapping[str, str] = {}
    """Parameters whose attribute has another name."""
    _settable_to_none = True
    """False where setters take values only, whatever the constructor takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not any(row["params"] for row in self._rows) and any("no Python constructor" in t for t in self._raises()):
            raise TypeError(f"{type(self).__name__}: no constructor defined")
        given = bind(self._rows, args, kwargs)
        values = {name: default_of(row["type"], self._rows[0]["symbol"]) for name, row in self._access.items()}
        self._values = values | {self._renamed.get(name, name): value for name, value in given.items()}
        self._check()

    def _check(self) -> None:
        """Raise for values that the constructor, or a setter, refuses."""

    @classmethod
    def _raises(cls) -> list[str]:
        return [text for row in cls._rows for text in row["raises"]]

    def __getattr__(self, name: str) -> Any:
        if name in self._access and "_values" in self.__dict__:
            return self._values[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):  # the double's own
            object.__setattr__(self, name, value)
            return
        row = self._access.get(name)
        if row is None:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; upstream would keep it and not read it"
            )
        if row["access"] == "read_only":
            raise AttributeError(f"{type(self).__name__}.{name} is read-only")
        if not fits(row["type"], value, self._rows[0]["symbol"]) or (value is None and not self._takes_none(name)):
            raise refusal(self._rows[0])(f"{type(self).__name__}.{name} must be {row['type']}, not {value!r:.80}")
        before = dict(self._values)
        self._values[name] = value
        try:
            self._assigned(name)
            self._check()
        except Exception:
            self._values = before
            raise

    def _takes_none(self, name: str) -> bool:
        return self._settable_to_none

    def _assigned(self, name: str) -> None:
        """What else changes with an attribute."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r:.60}" for name, value in self.__dict__.get("_values", {}).items())
        return f"{type(self).__name__}({shown})"


def refusal(row: Row) -> type[Exception]:
    """What a wrong argument raises."""
    return ValidationError if any("pydantic" in text for text in row["raises"]) else TypeError


def bind(rows: list[Row], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, with defaults, for the first overload that takes them."""
    errors = []
    for row in rows:
        try:
            return _bound(row, args, kwargs)
        except TypeError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else TypeError("; or: ".join(map(str, errors)))


def _bound(row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    name, wrong = row["symbol"].rpartition(".")[2], refusal(row)
    params = [item for item in row["params"] if item["kind"] != "var_keyword"]
    by_place = [item["name"] for item in params if item["kind"] != "keyword_only"]
    if len(args) > len(by_place):
        raise wrong(f"{name}() takes {len(by_place)} positional arguments and {len(args)} were given")
    given = dict(zip(by_place, args, strict=False))
    by_name = {item["name"] for item in params if item["kind"] != "positional"}
    open_ended = len(params) < len(row["params"])
    for key, value in kwargs.items():
        if key in given or not (key in by_name or open_ended):
            raise wrong(f"{name}() got an unexpected keyword argument {key!r}")
        given[key] = value
    for item in params:
        key = item["name"]
        if key in given:
            if not fits(item["type"], given[key], row["symbol"]):
                raise wrong(f"{name}(): {key} must be {item['type']}, not {given[key]!r:.80}")
        elif item["required"]:
            raise wrong(f"{name}() is missing the argument {key!r}")
        else:
            given[key] = evaluate(item["default"], row["symbol"])
    return given


def declare(module: str, *bodies: type | Callable[..., Any]) -> dict[str, Any]:
    """The names of a module, made of its rows and of bodies for those that do something."""
    given = {body.__name__: body for body in bodies}
    made: dict[str, Any] = {}
    symbols = [symbol for symbol in table() if symbol.rpartition(".")[0] == module]
    for symbol in sorted(symbols, key=lambda symbol: "base" in table()[symbol][0]):  # bases first
        row, name = table()[symbol][0], symbol.rpartition(".")[2]
        if row["kind"] == "enum":
            made[name] = CLASSES[symbol] = _enumeration(row, module)
        elif row["kind"] == "class":
            made[name] = CLASSES[symbol] = _class(symbol, given.pop(name, None), module)
        elif row["kind"] == "function":
            made[name] = _checked(table()[symbol], given.pop(name))
    if given:
        raise NotImplementedError(f"{sorted(given)} are not in the table of {module}")
    return made


def _enumeration(row: Row, module: str) -> type:
    members = [value.partition("=") for value in row["values"]]
    named = [(name, (int(v) if row.get("base") == "int" else v) if v else i) for i, (name, _, v) in enumerate(members)]
    name = row["symbol"].rpartition(".")[2]
    if row.get("base") == "int":
        return enum.IntFlag(name, named, module=module)
    kind: Any = enum.Enum
    return kind(name, named, module=module, **({"type": str} if row.get("base") == "str" else {}))


def _class(symbol: str, body: type | None, module: str) -> type:
    rows = table()[symbol]
    name, base = symbol.rpartition(".")[2], lookup(rows[0].get("base", ""), symbol) or Declared
    made: Any = body or type(name, (base,), {})
    if issubclass(made, Declared):
        made._rows = rows
        made._access = base._access | {item["name"]: item for item in rows[0]["attributes"]}
        for member in [each for each in table() if each.rpartition(".")[0] == symbol]:
            if table()[member][0]["kind"] == "enum":
                CLASSES[member] = _enumeration(table()[member][0], module)
                setattr(made, member.rpartition(".")[2], CLASSES[member])
                continue
            _bind_member(made, table()[member], member.rpartition(".")[2])
        inherited = {member.rpartition(".")[2] for member in table() if lookup_owner(member, made)}
        if extra := [key for key in vars(made) if not key.startswith("_") and key not in inherited | set(made._access)]:
            raise NotImplementedError(f"{symbol}: {extra} are not in the table")
    made.__module__ = module
    if issubclass(made, Declared):
        made.__nb_signature__ = _told(rows)
        made.__annotations__ = {name: "Any" for name in made._access}
    return made


def _told(rows: list[Row]) -> tuple[tuple[str, None], ...]:
    """The signature of each overload as text, as functions bound to C++ tell it."""
    return tuple(
        (f"def {row['symbol'].rpartition('.')[2]}({', '.join(item['name'] for item in row['params'])})", None)
        for row in rows
    )


def lookup_owner(symbol: str, made: type) -> bool:
    """Whether a row belongs to a class or one of its bases."""
    owner = symbol.rpartition(".")[0].rpartition(".")[2]
    return any(each.__name__ == owner for each in made.__mro__)


def _bind_member(made: type, rows: list[Row], name: str) -> None:
    """Check the arguments of a method; constants stay as they are."""
    decorator = rows[0].get("decorator")
    if decorator == "class attribute":
        getattr(made, name)
        return
    function = vars(made).get(name)
    if function is None:
        raise NotImplementedError(f"the double lacks {rows[0]['symbol']}")
    function = getattr(function, "__func__", function)
    wrapped: Any = _checked(rows, function, bound_first=decorator == "classmethod")
    setattr(
        made,
        name,
        {"staticmethod": staticmethod, "classmethod": classmethod}.get(decorator or "", lambda f: f)(wrapped),
    )


def _checked(rows: list[Row], function: Callable[..., Any], *, bound_first: bool = False) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first, rest = (args[:1], args[1:]) if bound_first else ((), args)
        return function(*first, **bind(rows, rest, kwargs))

    call.__nb_signature__ = _told(rows)  # type: ignore[attr-defined]
    return call
