"""The network that is being made."""

from __future__ import annotations

from typing import Any

from tensorrt_llm._double import network
from tensorrt_llm._table import declare


def default_trtnet() -> Any:
    return network.current()


globals().update(declare(__name__, default_trtnet))
