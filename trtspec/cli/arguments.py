"""Types of command-line arguments whose errors argparse shows, with exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable

MOST_INT32 = 2**31 - 1
MOST_UINT64 = 2**64 - 1


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number that its field on the wire can hold; what makes sense the server says."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is out of range; allowed is {low} to {high}")
        return value

    return parse


int32 = whole(-MOST_INT32 - 1, MOST_INT32)
uint64 = whole(0, MOST_UINT64)


def utf8(text: str) -> str:
    """A text that can be sent; the shell may hand over any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"is not UTF-8 from character {error.start} on") from None
    return text


def bias(text: str) -> tuple[int, float]:
    """A token id and what is added to its logit, as `ID=VALUE`."""
    token_id, equals, value = text.partition("=")
    try:
        if equals:
            return int32(token_id), float(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no ID=VALUE, such as 198=-5.0")
