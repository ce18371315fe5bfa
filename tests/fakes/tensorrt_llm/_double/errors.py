"""The two forms in which the runtime's errors reach Python, as exceptions and inside of error responses."""

from __future__ import annotations

import os
import sys

FETCH = "Encountered an error when fetching new request: "
FORWARD = "Encountered an error in forwardAsync function: "
SHUTDOWN = "Shutdown called"


def assertion(text: str) -> str:
    """The text of a failed check."""
    return f"[TensorRT-LLM][ERROR] Assertion failed: {text} {_place()}"


def thrown(text: str) -> str:
    """The text of a thrown error."""
    return f"{text} {_place()}"


def _place() -> str:
    """File and line, and the back-trace that comes after them."""
    frame = sys._getframe(2)
    file = os.path.basename(frame.f_code.co_filename)
    return f"({file}:{frame.f_lineno})\n1       0x7f0000000000 {frame.f_code.co_name} + 1"


def check(good: bool, text: str) -> None:
    """Raise what a failed check raises."""
    if not good:
        raise RuntimeError(assertion(text))
