"""What the loop over TensorRT-LLM's executors asks of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol


class Engine(Protocol):
    """An open executor. One thread may wait while another one does the rest. All raise RuntimeError once it is lost."""

    def enqueue(self, asked: Sequence[Mapping[str, Any]]) -> list[int]:
        """Queue requests, given as plain arguments, all or none; returns their ids."""
        ...

    def cancel_request(self, request_id: int) -> None: ...

    def await_responses(self, timeout: timedelta) -> Sequence[Any]:
        """What came, as TensorRT-LLM's responses; nothing where the time is over."""
        ...

    def get_latest_iteration_stats(self) -> Sequence[Any]: ...

    def shutdown(self) -> None: ...
