"""The slices that traffic is seen in, and bounds on what clients can make of labels."""

from __future__ import annotations

from bisect import bisect_right

from trtspec.service.requests import ParsedRequest

TASK_TAG = "task"
"""The tag of a request that names its task."""
MOST_TASKS = 8
"""Names that are told apart; each can have a series in every bucket of lengths."""
OTHER = "other"
_BOUNDS = (128, 512, 2048, 8192)
_NAMES = ("1-127", "128-511", "512-2047", "2048-8191", "8192+")


class FirstFew:
    """Lets the first few distinct values be labels; all later ones are one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        if value in self._known or not value:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


def length(tokens: int) -> str:
    """The bucket of a prompt or an output."""
    return _NAMES[bisect_right(_BOUNDS, tokens)]


def sampling(request: ParsedRequest) -> str:
    """How tokens are chosen: greedy ones, and drawn ones from all or from some."""
    if request.sampling.greedy:
        return "greedy"
    return "truncated" if request.sampling.truncates else "drawn"
