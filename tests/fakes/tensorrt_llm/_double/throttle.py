"""When the PyTorch flow drafts (drafter.py, speculation_gate.py, py_executor.py): by the batch, until a gate closes.

It sits before the proposer of the engine underneath, and takes the room for drafts away from all rows of a pass.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

LIMITS = ("max_concurrency", "draft_len_schedule", "acceptance_window", "acceptance_length_threshold")


class Throttle:
    """Implements the engine's `Proposer` around its own. The loop's thread tells it of passes and of what ended."""

    def __init__(self, proposer: Any, config: Any, max_num_tokens: int) -> None:
        self._proposer, self._config, self._deepest = proposer, config, config.max_draft_len
        self._most = max_num_tokens // (1 + self._deepest)
        self._depth = self._deepest
        self._lengths: deque[float] = deque(maxlen=config.acceptance_window or 1)
        self._gated = bool(config.acceptance_window) and config.acceptance_length_threshold is not None
        self._closed = False

    @property
    def needs(self) -> Any:
        return self._proposer.needs

    def propose(self, view: Any) -> Any:
        def cut(row: Any) -> Any:
            return replace(row, max_depth=min(row.max_depth, self._depth))

        return self._proposer.propose(replace(view, rows=tuple(map(cut, view.rows))))

    def begin(self, active: int) -> None:
        """Before a pass, with the requests that are active."""
        schedule = self._config.draft_len_schedule or {1: self._deepest}
        most = self._config.max_concurrency
        off = self._closed or (most is not None and min(active, self._most) > most)
        self._depth = 0 if off else schedule[max(least for least in schedule if least <= active)]

    def ended(self, tokens: int, iterations: int) -> None:
        """A request is complete. Those that end in a pass without drafts do not count."""
        if not self._gated or self._closed or not self._depth:
            return
        self._lengths.append(max(tokens / max(iterations, 1) - 1, 0.0))
        full = len(self._lengths) == self._config.acceptance_window
        mean = sum(self._lengths) / len(self._lengths)
        self._closed = full and mean < self._config.acceptance_length_threshold
