"""Where the value of each setting comes from: a file, the environment, the command line, or its default.

Later ones win: default, file, environment, flag. The declarations are dataclasses (`trtspec.declared`); this module
only collects, and tells of each value who set it.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trtspec.declared import check_value, flag, settings, value_type
from trtspec.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

PREFIX = "TRTSPEC_SERVE_"
"""Of environment variables. Not shorter: orchestrators set NAME_PORT and the like for a service of that name."""
_WORDS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Set:
    """A value that somebody gave."""

    value: Any
    by: str
    """As they spelt it: `--port`, `TRTSPEC_SERVE_PORT`, `port of [server] in serve.toml`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All values that were given for some groups of settings, by name; names are unique over the groups."""

    kinds: Mapping[str, type]
    given: Mapping[str, Set]

    def build(self, kind: type[T], **more: Any) -> T:
        """One group's dataclass. Its own checks run here."""
        values = {item.name: self.given[item.name].value for item in settings(kind) if item.name in self.given}
        return kind(**values, **more)

    def as_toml(self) -> str:
        """All effective values with their help and who set them; a file that can be given back."""
        return "\n".join(line for name, kind in self.kinds.items() for line in self._table(name, kind))

    def _table(self, name: str, kind: type) -> Iterable[str]:
        yield f"[{name}]"
        for item in settings(kind):
            yield f"# {item.metadata['help']}"
            given = self.given.get(item.name)
            value = given.value if given else item.default
            if value is None:
                yield f"# {item.name} is not set (default: {item.metadata.get('told', 'none')})"
            else:
                yield f"{item.name} = {_as_toml(value)}  # {given.by if given else 'default'}"
        yield ""


def collect(
    kinds: Mapping[str, type],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None,
) -> Settings:
    """Collect what was given for these groups, by the name of their table in the file.

    `flags` holds only what stands on the command line. Raises `ConfigError` for names of no setting, for values of the
    wrong type and for those that are not allowed, under the name by which they were set.
    """
    declared = {item.name: (kind, item) for kind in kinds.values() for item in settings(kind)}
    content = _read(file) if file else {}
    given = {
        **_from_file(kinds, content, file),
        **_from_environment({name: kind for name, (kind, _) in declared.items()}, environment),
        **{name: Set(value, flag(name)) for name, value in flags.items()},
    }
    for name, item in given.items():
        check_value(declared[name][1], item.value, item.by)
    return Settings(kinds, given)


def config_file(named: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The file of settings, be it named by a flag or in the environment."""
    found = named or environment.get(PREFIX + "CONFIG")
    return Path(found).expanduser() if found else None


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is no TOML: {error}") from error
    return content


def _from_file(kinds: Mapping[str, type], content: Mapping[str, Any], file: Path | None) -> dict[str, Set]:
    given: dict[str, Set] = {}
    for table, values in content.items():
        if table not in kinds or not isinstance(values, dict):
            raise ConfigError(f"{file} has {table!r}; known tables are {', '.join(kinds)}")
        names = {item.name for item in settings(kinds[table])}
        for name, value in values.items():
            by = f"{name} of [{table}] in {file}"
            if name not in names:
                raise ConfigError(f"{by} is no setting{_near(name, names)}")
            given[name] = Set(_typed(value_type(kinds[table], name), value, by), by)
    return given


def _from_environment(kinds: Mapping[str, type], environment: Mapping[str, str]) -> dict[str, Set]:
    given: dict[str, Set] = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        name = variable[len(PREFIX) :].lower()
        if name in kinds:
            given[name] = Set(_parsed(value_type(kinds[name], name), environment[variable], variable), variable)
        elif name != "config":
            raise ConfigError(f"{variable} is no setting{_near(name, kinds)}")
    return given


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 1)
    return f"; is it {close[0]}?" if close else "; `trtspec serve --print-config` shows all of them"


def _typed(kind: type, value: Any, by: str) -> Any:
    """A value of TOML, which has types of its own."""
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{by} is {value!r}; allowed is {_WHAT[kind]}")
    return value


def _parsed(kind: type, text: str, by: str) -> Any:
    """A value of the environment, which has texts only."""
    try:
        return _WORDS[text.lower()] if kind is bool else _typed(kind, text if kind is Path else kind(text), by)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{by} is {text!r}; allowed is {_WHAT[kind]}") from error


_WHAT = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
}


def _as_toml(value: Any) -> str:
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
