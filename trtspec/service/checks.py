"""Checks that name field, value and what is allowed, and how much of a client's text an answer repeats."""

from __future__ import annotations

from trtspec.errors import InvalidField, PromptTooLong

MAX_LABEL_CHARACTERS = 128
"""Of an id, a tenant, a key, a salt and the like."""
_SHOWN_CHARACTERS = 64
"""An error message quotes at most this much of a client's text, unless there is more to learn from it."""
_ELLIPSIS = "…"


def check(holds: bool, field: str, value: object, allowed: str) -> None:
    """Refuse the request unless the condition holds. Write it so that NaN fails it."""
    if not holds:
        raise InvalidField(field, value, allowed)


def check_number(field: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside an inclusive range; NaN is outside."""
    check(low <= value <= high, field, value, f"{low} to {high}")


def check_label(field: str, text: str) -> None:
    """Refuse a text that is too long to be a name, or that could break a log line or a key made of several."""
    fits = len(text) <= MAX_LABEL_CHARACTERS and text.isprintable()
    check(fits, field, shown(text), f"at most {MAX_LABEL_CHARACTERS} printable characters")


def check_room(prompt_tokens: int, context: int) -> None:
    """Refuse a prompt that leaves no room for a token of the answer."""
    if prompt_tokens >= context:
        raise PromptTooLong(
            f"the prompt has {prompt_tokens} tokens and the context holds {context}, the answer included; "
            f"shorten it to at most {context - 1}",
            prompt_tokens=str(prompt_tokens),
            max_context_tokens=str(context),
        )


def shown(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """A client's text as an error message quotes it."""
    return repr(text if len(text) <= most else text[:most] + _ELLIPSIS)


def shortened(text: str, most_bytes: int) -> str:
    """The text, cut at a character where its UTF-8 form is longer than that."""
    data = text.encode(errors="replace")
    if len(data) <= most_bytes:
        return text
    return data[: most_bytes - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS
