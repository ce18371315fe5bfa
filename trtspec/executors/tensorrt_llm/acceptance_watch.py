"""Tells when TensorRT-LLM's acceptance gate has closed: speculation is off then for the life of the process.

Nothing says so but its own log. Its rule is known (`_torch/speculative/speculation_gate.py`): each completed request's
tokens an iteration, less the target's own, averaged over the last few. When that mean has fallen, and passes that may
draft do not any more, it has happened.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from trtspec.speculative import SpeculativeConfig

_log = logging.getLogger(__name__)
_QUIET = 16
"""Passes without a draft, one after the other, that are no chance any more."""


def warning(config: SpeculativeConfig) -> str | None:
    """What whoever asks for the gate has to know; None without one."""
    if not config.acceptance_window:
        return None
    return (
        "acceptance_window and acceptance_length_threshold are a gate that never opens again: once the mean accepted "
        f"length of the last {config.acceptance_window} requests is below {config.acceptance_length_threshold:g}, "
        "TensorRT-LLM drafts nothing any more until the server is started again"
    )


class AcceptanceWatch:
    """Fed with what ends and with iteration statistics; logs once."""

    def __init__(self, config: SpeculativeConfig, max_batch_size: int) -> None:
        self._config, self._max_batch_size = config, max_batch_size
        self._lengths: deque[float] = deque(maxlen=config.acceptance_window)
        self._mean: float | None = None
        """Of the requests with which it fell."""
        self._quiet = 0
        self._told = False

    def ended(self, tokens_per_iteration: float | None, asked_for: int) -> None:
        """An output has ended while so many were asked for, itself included. One that ends while none may draft does
        not count.
        """
        running = min(asked_for, self._max_batch_size)
        if tokens_per_iteration is None or not self._may_draft(running) or not self._lengths.maxlen:
            return
        self._lengths.append(max(0.0, tokens_per_iteration - 1))
        mean = sum(self._lengths) / len(self._lengths)
        full = len(self._lengths) == self._lengths.maxlen
        if self._mean is None and full and mean < self._config.acceptance_length_threshold:
            self._mean = mean

    def iterated(self, iterations: Sequence[dict[str, Any]]) -> None:
        """What the LLM tells of its iterations, in order."""
        if self._mean is None or self._told:
            return
        for iteration in iterations:
            if (iteration.get("specDecodingStats") or {}).get("numDraftTokens"):
                self._quiet = 0
            elif (iteration.get("inflightBatchingStats") or {}).get("numGenRequests"):
                self._quiet += self._may_draft(iteration.get("numActiveRequests", 0))
        if self._quiet >= _QUIET:
            self._told = True
            _log.warning(
                "speculation is off for good: the mean accepted length of the last %d requests was %.2f and "
                "acceptance_length_threshold is %g; start the server again to draft, with a lower threshold or without",
                self._config.acceptance_window,
                self._mean,
                self._config.acceptance_length_threshold,
            )

    def _may_draft(self, running: int) -> bool:
        return self._config.depth_at(running, self._config.draft_tokens) > 0
