"""Which request features work with which method: the one table behind refusals, GetModelInfo and the README.

The rows are in `capabilities.csv`. A feature is the name of a request field; `speculation.mode` is the two features
`speculation_off` and `speculation_on`. `*` stands for any method, and a row that names a method goes before it.
`python -m trtspec.capabilities` prints the README's table.
"""

from __future__ import annotations

import csv
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

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


def capabilities(method: Method, flow: str) -> Mapping[str, Capability]:
    """The features of one method on one flow, by name."""
    general: dict[str, Capability] = {}
    special: dict[str, Capability] = {}
    for row_method, row_flow, capability in _rows():
        if row_flow == flow and row_method in (ANY_METHOD, method.value):
            chosen = general if row_method == ANY_METHOD else special
            chosen[capability.feature] = capability
    return general | special


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
    methods = [method for method in Method if any(name == method.value for name, *_ in _rows())]
    verdicts = {method.value: capabilities(method, flow)[feature].verdict for method in methods}
    if len(set(verdicts.values())) == 1:
        return verdicts[methods[0].value]
    return "; ".join(f"`{method}` {verdict}" for method, verdict in verdicts.items())


@cache
def _rows() -> tuple[tuple[str, str, Capability], ...]:
    text = resources.files("trtspec").joinpath("capabilities.csv").read_text(encoding="utf-8")
    return tuple(
        (row["method"], row["flow"], Capability(row["feature"], Support(row["support"]), row["reason"]))
        for row in csv.DictReader(text.splitlines())
    )


if __name__ == "__main__":
    print(as_markdown())
