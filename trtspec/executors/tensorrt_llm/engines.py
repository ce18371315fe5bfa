"""What the loop over TensorRT-LLM's executors asks of each of them, and the one in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from trtspec.executors.tensorrt_llm import bindings


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


class LocalEngine:
    """Implements `Engine` over an executor of this process."""

    def __init__(self, executor: Any, logits_size: int) -> None:
        self._executor = executor
        self._logits_size = logits_size

    def enqueue(self, asked: Sequence[Mapping[str, Any]]) -> list[int]:
        requests = [bindings.make_request(arguments, self._logits_size) for arguments in asked]
        return list(self._executor.enqueue_requests(requests))

    def cancel_request(self, request_id: int) -> None:
        self._executor.cancel_request(request_id)

    def await_responses(self, timeout: timedelta) -> Sequence[Any]:
        responses: Sequence[Any] = self._executor.await_responses(timeout=timeout)
        return responses

    def get_latest_iteration_stats(self) -> Sequence[Any]:
        iterations: Sequence[Any] = self._executor.get_latest_iteration_stats()
        return iterations

    def shutdown(self) -> None:
        self._executor.shutdown()
