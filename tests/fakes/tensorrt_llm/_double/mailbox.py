"""Responses that wait to be fetched."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tensorrt_llm._double.errors import SHUTDOWN, thrown


class Mailbox:
    """Filled by the loop's thread, emptied by any other."""

    def __init__(self, terminated: Callable[[int], Any]) -> None:
        self._terminated = terminated
        """Makes the answer to a question that comes after the last one."""
        self._changed = threading.Condition()
        self._ready: dict[int, deque[Any]] = {}
        self._ended: set[int] = set()
        """Whose last response was handed out."""
        self._closed = False

    def put(self, request_id: int, response: Any) -> None:
        with self._changed:
            self._ready.setdefault(request_id, deque()).append(response)
            self._changed.notify_all()

    def ready(self, request_id: int | None) -> int:
        with self._changed:
            self._check()
            found = self._ready.values() if request_id is None else [self._ready.get(request_id, ())]
            return sum(map(len, found))

    def any(self, timeout: float | None) -> list[Any]:
        """All that are there, or the first that comes."""
        with self._changed:
            self._check()
            self._changed.wait_for(lambda: self._ready or self._closed, timeout)
            return [response for request_id in list(self._ready) for response in self._take(request_id)]

    def of(self, request_id: int, timeout: float | None) -> list[Any]:
        """Those of one request; an error where its last one is gone."""
        with self._changed:
            self._check()
            return self._of(request_id, timeout)

    def of_all(self, request_ids: list[int], timeout: float | None) -> list[list[Any]]:
        """Those of each; the time is that of all together."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._check()
            return [self._of(one, None if end is None else max(end - time.monotonic(), 0)) for one in request_ids]

    def close(self) -> None:
        """Release who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError(thrown(SHUTDOWN))

    def _of(self, request_id: int, timeout: float | None) -> list[Any]:
        if request_id in self._ended:
            return [self._terminated(request_id)]
        self._changed.wait_for(lambda: request_id in self._ready or self._closed, timeout)
        return self._take(request_id)

    def _take(self, request_id: int) -> list[Any]:
        responses = list(self._ready.pop(request_id, ()))
        if any(response.has_error() or response.result.is_final for response in responses):
            self._ended.add(request_id)
        return responses
