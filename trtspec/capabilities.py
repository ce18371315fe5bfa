"""Which request features work with which method: the one table behind refusals, GetModelInfo and the README.

The rows are in `capabilities.csv`. A feature is the name of a request field; `speculation.mode` is the two features
`speculation_off` and `speculation_on`. `*` stands for any method; a row that names a method goes before it, and a row
that names a method and its rule of acceptance, where that is not the exact one, before both: `medusa:typical`.
`python -m trtspec.capabilities` prints the README's table.
"""

from __future__ import annotations

import csv
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from trtspec.speculative import EXACT
from trtspec.types import Method

ANY_METHOD = "*"


class Support(enum.Enum):
    HONOURED = "honoured"
    REFUSED = "refused"
    NOT_LOSSLESS = "not lossless"


@dataclass(frozen=True, slots=True)
class Capability:
    """One cell of the table."""

    feature: str
    support: Support
    reason: str = ""

    @property
    def verdict(self) -> str:
        """What a person reads of it."""
        return f"{self.support.value}: {self.reason}" if self.reason else self.support.value


def capabilities(method: Method, flow: str, acceptance: str = EXACT) -> Mapping[str, Capability]:
    """The features of one method on one flow, by name."""
    return _features(f"{method.value}:{acceptance}", flow)


def as_markdown() -> str:
    """The whole table, features of one fate together, as the README shows it."""
    flows = list(dict.fromkeys(flow for _, flow, _ in _rows()))
    features = dict.fromkeys(capability.feature for *_, capability in _rows())
    groups: dict[tuple[str, ...], list[str]] = {}
    for feature in features:
        groups.setdefault(tuple(_fate(feature, flow) for flow in flows), []).append(f"`{feature}`")
    lines = [["request features", *flows], ["---"] * (1 + len(flows))]
    lines += [[", ".join(names), *fates] for fates, names in groups.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fate(feature: str, flow: str) -> str:
    """What becomes of a feature on a flow, told by method only where that matters."""
    general = _features(ANY_METHOD, flow).get(feature)
    rows = {name for name, *_ in _rows() if name != ANY_METHOD}
    names = [name for method in Method for name in sorted(rows) if name.partition(":")[0] == method.value]
    fates = {f"`{name}` {_features(name, flow)[feature].verdict}": _features(name, flow)[feature] for name in names}
    special = [words for words, capability in fates.items() if capability != general]
    if general is None:
        return "; ".join(special)
    return "; ".join([*special, f"others {general.verdict}"]) if special else general.verdict


def _features(name: str, flow: str) -> Mapping[str, Capability]:
    """The rows of a method, with a rule behind a colon or without, over those that are more general."""
    found: dict[str, Capability] = {}
    for general in (ANY_METHOD, name.partition(":")[0], name):
        found |= {item.feature: item for row, row_flow, item in _rows() if (row, row_flow) == (general, flow)}
    return found


@cache
def _rows() -> tuple[tuple[str, str, Capability], ...]:
    text = resources.files("trtspec").joinpath("capabilities.csv").read_text(encoding="utf-8")
    return tuple(
        (row["method"], row["flow"], Capability(row["feature"], Support(row["support"]), row["reason"]))
        for row in csv.DictReader(text.splitlines())
    )


if __name__ == "__main__":
    print(as_markdown())
