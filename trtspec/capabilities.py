"""Which request features work with which method: the one table behind refusals, GetModelInfo and the README.

The rows are in `capabilities.csv`. A feature is the name of a request field; `speculation.mode` is the two features
`speculation_off` and `speculation_on`. `*` stands for any method, and a row that names a method goes before it.
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


def capabilities(method: Method, flow: str) -> Mapping[str, Capability]:
    """The features of one method on one flow, by name."""
    general: dict[str, Capability] = {}
    special: dict[str, Capability] = {}
    for row_method, row_flow, capability in _rows():
        if row_flow == flow and row_method in (ANY_METHOD, method.value):
            chosen = general if row_method == ANY_METHOD else special
            chosen[capability.feature] = capability
    return general | special


@cache
def _rows() -> tuple[tuple[str, str, Capability], ...]:
    text = resources.files("trtspec").joinpath("capabilities.csv").read_text(encoding="utf-8")
    return tuple(
        (row["method"], row["flow"], Capability(row["feature"], Support(row["support"]), row["reason"]))
        for row in csv.DictReader(text.splitlines())
    )
