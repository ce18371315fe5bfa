"""What an error text of TensorRT-LLM means: there are no codes, only prefixes that its sources keep.

Exceptions carry file, line and a back-trace around the text, so it is searched for and not compared.
"""

from __future__ import annotations

from trtspec.errors import (
    EngineFault,
    EngineLost,
    InvalidField,
    Overloaded,
    PromptTooLong,
    RequestError,
    TrtspecError,
)

ADMISSION = "Encountered an error when fetching new request: "
FORWARD = ("Encountered an error in forwardAsync function: ", "Encountered an error in forwardSync function: ")
QUEUE_FULL = "Maximum queue size of"
SHUT_DOWN = "Shutdown called"
_TOO_LONG = ("exceeds maximum input length", "must be less than max sequence length")


class EngineDied(TrtspecError):
    """The engine cannot go on: its process ends, and its supervisor starts another."""


def is_forward_failure(message: str) -> bool:
    """A step failed: every active request has ended, and a device error would stick."""
    return any(prefix in message for prefix in FORWARD)


def request_error(message: str) -> RequestError:
    """The error of one request that TensorRT-LLM refused or ended."""
    text = first_line(message)
    if QUEUE_FULL in message:
        return Overloaded(f"the engine's queue is full: {text}")
    if SHUT_DOWN in message:
        return EngineLost("the engine is closing")
    if any(part in message for part in _TOO_LONG):
        return PromptTooLong(text)
    if ADMISSION in message:
        return InvalidField("request", text, "what this engine was built for")
    if is_forward_failure(message):
        return EngineLost(f"a step of the engine failed: {text}")
    return EngineFault(f"the engine refused to go on: {text}")


def first_line(message: str) -> str:
    """The text without its prefixes, its place in the sources and the back-trace."""
    line = message.strip().splitlines()[0] if message.strip() else "no text"
    for prefix in (ADMISSION, *FORWARD, "[TensorRT-LLM][ERROR] ", "Assertion failed: "):
        line = line.replace(prefix, "")
    return line.partition(" (/")[0].strip()
