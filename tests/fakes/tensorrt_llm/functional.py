"""Tensors of a network that is being made."""

from __future__ import annotations

from typing import Any

from tensorrt_llm._double import network
from tensorrt_llm._table import declare


def _create_tensor(trt_tensor: Any, producer: Any) -> Any:
    return network.wrapped(trt_tensor, producer)


globals().update(declare(__name__, network.Tensor, _create_tensor))
