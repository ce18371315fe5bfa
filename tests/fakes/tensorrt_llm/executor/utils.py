"""Errors of requests."""

from __future__ import annotations

from tensorrt_llm._table import declare


class RequestError(RuntimeError):
    """A request failed; others are not affected."""


globals().update(declare(__name__, RequestError))
