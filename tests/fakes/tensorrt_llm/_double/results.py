"""Responses and statistics: what a caller may read of them, and when."""

from __future__ import annotations

import json
from typing import Any

from tensorrt_llm._double.errors import thrown
from tensorrt_llm._table import Declared


class Response(Declared):
    """Either an error or a result; reading the other one is an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failed = "error_msg" in kwargs or any(isinstance(value, str) for value in args)

    def has_error(self) -> bool:
        return self._failed

    @property
    def error_msg(self) -> str:
        if not self.has_error():
            raise RuntimeError(thrown("Cannot get the error message: the response has none"))
        return str(self._values["error_msg"])

    @property
    def result(self) -> Any:
        if self.has_error():
            raise RuntimeError(thrown(f"Cannot get the result, there is an error: {self._values['error_msg']}"))
        return self._values["result"]

    def clear_context_logits(self) -> None:
        self.result.context_logits = None

    def clear_generation_logits(self) -> None:
        self.result.generation_logits = None


class IterationStats(Declared):
    def to_json_str(self) -> str:
        """Absent statistics have no key."""
        return json.dumps(as_json(self))


_WORDS = {"ms": "MS"}
_KEYS = {"specdec_stats": "specDecodingStats"}


def as_json(value: Any) -> Any:
    """Statistics under the keys that JSON has for them."""
    if not isinstance(value, Declared):
        return value
    return {json_key(name): as_json(item) for name, item in value._values.items() if item is not None}


def json_key(name: str) -> str:
    first, *others = name.split("_")
    return _KEYS.get(name) or first + "".join(_WORDS.get(word, word.capitalize()) for word in others)
