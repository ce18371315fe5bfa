"""A plan as text: one argument a line, `path = JSON`, so that it can be read, searched and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def lines(value: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every leaf of nested mappings; lists are leaves."""
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping):
            yield from lines(item, f"{path}.")
        else:
            yield f"{path} = {json.dumps(item)}"
