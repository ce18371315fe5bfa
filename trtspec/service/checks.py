"""Range checks that name field, value and what is allowed."""

from __future__ import annotations

from trtspec.errors import InvalidField

_SHOWN_CHARACTERS = 64
"""An error message quotes at most this much of a client's text."""


def check(holds: bool, field: str, value: object, allowed: str) -> None:
    """Refuse the request unless the condition holds. Write it so that NaN fails it."""
    if not holds:
        raise InvalidField(field, value, allowed)


def check_number(field: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside an inclusive range; NaN is outside."""
    check(low <= value <= high, field, value, f"{low} to {high}")


def shown(text: str) -> str:
    """A client's text as an error message quotes it."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
