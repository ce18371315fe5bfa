"""A timer for tests of what measures."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.gpu_check.kernels.timing import Call


class Clock:
    """Says what it is told to, call by call, and calls nothing."""

    def __init__(self, *answers: float | Exception) -> None:
        self._answers = iter(answers)

    def __call__(self, calls: Sequence[Call], seconds: float) -> float:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer
