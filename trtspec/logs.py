"""How a process of the server writes its log: one line or JSON object a record, and of an error its kinds and places.

What an error says may quote what a client sent, such as a prompt; so that is left out unless the operator wants it.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import datetime, timezone
from types import TracebackType

_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
_CAUSED = "which caused:\n"


class WithoutMessages(logging.Formatter):
    """Formats exceptions without their messages."""

    def formatException(self, ei: _Raised) -> str:
        return trace(ei[1]) if ei[1] is not None else ""


class Json(logging.Formatter):
    """Formats records as JSON objects; what an exception says is told by another formatter."""

    def __init__(self, who: str, exceptions: logging.Formatter) -> None:
        super().__init__()
        self._who = who
        self._exceptions = exceptions

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "event": "log",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._who:
            line["process"] = self._who
        if record.exc_info:
            line["exception"] = self._exceptions.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(who: str = "", *, form: str = "text", messages: bool = False) -> None:
    """Log warnings and errors of this process on standard error, with `who` in each line; `form` is text or json."""
    kind = logging.Formatter if messages else WithoutMessages
    text = kind(f"%(asctime)s %(levelname)s {who and who + ': '}%(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(Json(who, text) if form == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def trace(error: BaseException) -> str:
    """Kinds and places of an error and of those that it came from, the first one first."""
    return _CAUSED.join(_one(item) for item in reversed([*_chain(error)])).rstrip("\n")


def _one(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return "".join(traceback.format_tb(error.__traceback__)) + f"{name} (its message may quote a client: left out)\n"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
