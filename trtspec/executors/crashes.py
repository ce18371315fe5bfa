"""When to try again after an engine's process died: pure bookkeeping over times that it is told."""

from __future__ import annotations

from collections import deque

from trtspec.types import Request

WINDOW_SECONDS = 300.0
"""Crashes further apart than this have nothing to do with each other."""
MAX_CRASHES = 3
"""So many within the window end the server: a supervisor above it knows more than we do."""
MAX_CRASHES_OF_A_REQUEST = 2
"""A request that was in flight in so many crashes is taken for their cause."""
FIRST_BACKOFF_SECONDS = 0.5


class CrashHistory:
    """The crashes within the window, with the requests that were in flight in each."""

    def __init__(self) -> None:
        self._crashes: deque[tuple[float, frozenset[int]]] = deque()

    def record(self, now: float, in_flight: list[Request]) -> None:
        self._crashes.append((now, frozenset(fingerprint(request) for request in in_flight)))
        self._forget(now)

    @property
    def exhausted(self) -> bool:
        return len(self._crashes) >= MAX_CRASHES

    @property
    def backoff_seconds(self) -> float:
        """Wait before the next start; doubles with each crash in the window."""
        return FIRST_BACKOFF_SECONDS * 2.0 ** (len(self._crashes) - 1)

    def suspects(self, request: Request, now: float) -> bool:
        """Whether a request like this was in flight in too many crashes."""
        self._forget(now)
        mark = fingerprint(request)
        return sum(mark in marks for _, marks in self._crashes) >= MAX_CRASHES_OF_A_REQUEST

    def _forget(self, now: float) -> None:
        while self._crashes and now - self._crashes[0][0] > WINDOW_SECONDS:
            self._crashes.popleft()


def fingerprint(request: Request) -> int:
    """What makes two requests the same work; a retry comes with another id and seed."""
    return hash((request.prompt, request.max_tokens, request.sampling, request.stop_ids))
