"""What works with which method: the one table behind refusals, GetModelInfo and the documentation.

The rows are in `capabilities.csv`, each with the evidence for it. A flow is what runs the passes: `embedded`, or
TensorRT-LLM's `engine` (compiled engines) and `pytorch`. A feature is the name of a request field; `speculation.mode`
is the two features `speculation_off` and `speculation_on`, and `*` is the method itself on that flow. As a method, `*`
stands for any; a row that names a method goes before it, and a row that names a method and its rule of acceptance,
where that is not the exact one, before both: `medusa:typical`. `python -m trtspec.capabilities` prints the table.
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

EMBEDDED, ENGINE, PYTORCH = "embedded", "engine", "pytorch"
"""The flows."""
ANY_METHOD = "*"
_METHOD_ITSELF = "*"


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
    evidence: str = ""
    """Where that can be seen: a test of ours, or a public source of TensorRT-LLM."""

    @property
    def verdict(self) -> str:
        """What a person reads of it."""
        return f"{self.support.value}: {self.reason}" if self.reason else self.support.value


def capabilities(method: Method, flow: str, acceptance: str = EXACT) -> Mapping[str, Capability]:
    """The features of one method on one flow, by name."""
    return _features(f"{method.value}:{acceptance}", flow)


def refusal(method: Method, flow: str, acceptance: str = EXACT) -> str | None:
    """Why a method, or that rule of acceptance for it, is not on a flow, and what would work; None where it is."""
    return _refusal(f"{method.value}:{acceptance}", flow)


def as_markdown() -> str:
    """The whole table, features of one fate together, as the documentation shows it."""
    flows = list(dict.fromkeys(flow for _, flow, _ in _rows()))
    features = dict.fromkeys(item.feature for *_, item in _rows() if item.feature != _METHOD_ITSELF)
    groups: dict[tuple[str, ...], list[str]] = {}
    for feature in features:
        groups.setdefault(tuple(_fate(feature, flow) for flow in flows), []).append(f"`{feature}`")
    lines = [["request features", *flows], ["---"] * (1 + len(flows))]
    lines += [[", ".join(names), *fates] for fates, names in groups.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fate(feature: str, flow: str) -> str:
    """What becomes of a feature on a flow, told by method only where that matters."""
    general = _features(ANY_METHOD, flow).get(feature)
    rows = {name for name, row_flow, _ in _rows() if name != ANY_METHOD and row_flow == flow}
    names = [name for method in Method for name in sorted(rows) if name.partition(":")[0] == method.value]
    own = {name: _features(name, flow).get(feature) for name in names if _refusal(name, flow) is None}
    by_verdict: dict[str, list[str]] = {}
    for name, capability in own.items():
        if capability is not None and capability != general:
            by_verdict.setdefault(capability.verdict, []).append(f"`{name}`")
    special = [f"{', '.join(named)} {verdict}" for verdict, named in by_verdict.items()]
    if general is None:
        return "; ".join(special)
    return "; ".join([*special, f"others {general.verdict}"]) if special else general.verdict


def _refusal(name: str, flow: str) -> str | None:
    found = _all_rows(name, flow).get(_METHOD_ITSELF)
    return None if found is None else found.reason


def _features(name: str, flow: str) -> Mapping[str, Capability]:
    return {feature: item for feature, item in _all_rows(name, flow).items() if feature != _METHOD_ITSELF}


def _all_rows(name: str, flow: str) -> Mapping[str, Capability]:
    """The rows of a method, with a rule behind a colon or without, over those that are more general."""
    generals = (ANY_METHOD, name.partition(":")[0], name)
    return {
        item.feature: item
        for general in generals
        for row, row_flow, item in _rows()
        if (row, row_flow) == (general, flow)
    }


@cache
def _rows() -> tuple[tuple[str, str, Capability], ...]:
    text = resources.files("trtspec").joinpath("capabilities.csv").read_text(encoding="utf-8")
    return tuple(
        (
            row["method"],
            row["flow"],
            Capability(row["feature"], Support(row["support"]), row["reason"], row["evidence"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


if __name__ == "__main__":
    print(as_markdown())
