"""Puts what happened in passes into the mailbox and into the statistics. Called from the loop's thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from tensorrt_llm._double.answers import result_of
from tensorrt_llm._double.mailbox import Mailbox
from tensorrt_llm._double.opening import Opened
from tensorrt_llm._double.passes import Pass
from tensorrt_llm._double.reuse import Reuse
from tensorrt_llm._double.sequence import Group, Sequence
from tensorrt_llm._double.statistics import iteration_stats


def error_response(request_id: int, text: str, client_id: int | None) -> Any:
    from tensorrt_llm.bindings import executor as trtllm

    return trtllm.Response(request_id, text, client_id)


class Publisher:
    """Implements `Listener`."""

    def __init__(self, opened: Opened, mailbox: Mailbox, reuse: Reuse) -> None:
        self._opened, self._mailbox, self._reuse = opened, mailbox, reuse
        self._stats: deque[Any] = deque(maxlen=opened.config.iter_stats_max_iterations)
        self._lock = threading.Lock()

    def stepped(self, sequence: Sequence, new: list[int], iteration: int) -> None:
        """A response where there is something to tell: new tokens of a stream, or the end."""
        from tensorrt_llm.bindings import executor as trtllm

        group, request = sequence.group, sequence.group.request
        if sequence.iterations == 1:
            self._reuse.store(request.input_token_ids, request.cache_salt_id)
        if sequence.finished:
            self._reuse.store(list(request.input_token_ids) + sequence.tokens[:-1], request.cache_salt_id)
        if not sequence.finished and not (request.streaming and new):
            return
        result = result_of(sequence, new, iteration, self._opened.folder)
        self._mailbox.put(group.id, trtllm.Response(group.id, result, request.client_id))

    def failed(self, group: Group, text: str) -> None:
        self._mailbox.put(group.id, error_response(group.id, text, group.request.client_id))

    def passed(self, facts: Pass) -> None:
        engine = self._opened.machine.engine.stats()
        with self._lock:
            self._stats.append(iteration_stats(facts, engine, self._reuse, self._opened.max_batch_size))

    def drain(self) -> list[Any]:
        """The passes since the last call, as far as they are kept."""
        with self._lock:
            drained = list(self._stats)
            self._stats.clear()
        return drained
