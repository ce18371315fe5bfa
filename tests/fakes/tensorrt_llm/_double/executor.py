"""`Executor`: requests go in at any time, responses are fetched; everything between is the loop's.

Once shut down, and more so once its `with` block was left, hardly anything may be called; and by ranks that follow
nothing but `can_enqueue_requests` and `shutdown`, which waits for the leader's.
"""

from __future__ import annotations

import itertools
import sys
import time
from datetime import timedelta
from threading import Lock
from typing import Any

from tensorrt_llm._double.errors import SHUTDOWN, assertion, thrown
from tensorrt_llm._table import Declared

_NOT_ENQUEUED = "Shutdown called, cannot enqueue requests"
_ENDED = "ReqId {} has already been processed and was terminated."


class Executor(Declared):
    """Overloads of the constructor for other models, and for engines in memory, are not here."""

    def _check(self) -> None:
        """The constructor: opens the engine and starts its thread."""
        from tensorrt_llm._double.admission import Admission
        from tensorrt_llm._double.engine_folder import EngineFolder
        from tensorrt_llm._double.faults import Faults
        from tensorrt_llm._double.loop import Loop
        from tensorrt_llm._double.mailbox import Mailbox
        from tensorrt_llm._double.opening import open_folder
        from tensorrt_llm._double.publisher import Publisher, error_response
        from tensorrt_llm._double.reuse import Reuse
        from tensorrt_llm._double.world import World

        self._shut, self._freed = True, False  # until it is open
        self._world = World(EngineFolder(self._values["model_path"]).world_size)
        faults = Faults.planted(self._world.rank)
        if not self._world.leads:
            self._world.meet()
            self._shut = False
            return
        config = self._values["executor_config"]
        opened = open_folder(self._values["model_path"], self._values["model_type"], config)
        block = opened.folder.plugins["tokens_per_block"]
        reuse = Reuse(block, enabled=opened.block_reuse, partial=opened.partial_reuse)
        self._mailbox = Mailbox(lambda request_id: error_response(request_id, thrown(_ENDED.format(request_id)), None))
        self._publisher = Publisher(opened, self._mailbox, reuse)
        self._most_queued = config.max_queue_size
        self._ids, self._lock = itertools.count(1), Lock()
        admission = Admission(opened, faults, reuse)
        self._loop = Loop(opened.machine, faults, admission.admit, self._publisher, opened.max_batch_size)
        self._world.meet()
        self._shut = False

    def enqueue_request(self, request: Any) -> int:
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: list[Any]) -> list[int]:
        from tensorrt_llm._double.sequence import Group

        self._alive()
        self._world.only_leader("enqueueRequests")
        if self._shut:
            raise RuntimeError(thrown(_NOT_ENQUEUED))
        for request in requests:
            name = request.logits_post_processor_name
            if name is not None and name != request.BATCHED_POST_PROCESSOR_NAME:
                raise RuntimeError(assertion(f"LogitsPostProcessor {name} not found."))
        with self._lock:
            now = time.monotonic()
            groups = [Group(next(self._ids), request, request._sequences, now) for request in requests]
            self._loop.put(groups, self._most_queued)
        return [group.id for group in groups]

    def await_responses(
        self, timeout: timedelta | None = None, id: int | None = None, ids: list[int] | None = None
    ) -> list[Any]:
        self._alive()
        self._world.only_leader("awaitResponses")
        seconds = None if timeout is None else timeout.total_seconds()
        if id is not None:
            return self._mailbox.of(id, seconds)
        return self._mailbox.any(seconds) if ids is None else self._mailbox.of_all(ids, seconds)

    def get_num_responses_ready(self, id: int | None) -> int:
        self._alive()
        return self._mailbox.ready(id)

    def cancel_request(self, id: int) -> None:
        self._running()
        self._world.only_leader("cancelRequest")
        self._loop.cancel(id)

    def get_latest_iteration_stats(self) -> list[Any]:
        self._running()
        self._world.only_leader("getLatestIterationStats")
        return self._publisher.drain()

    def get_latest_request_stats(self) -> list[Any]:
        self._running()
        return []

    def get_latest_debug_tensors(self) -> list[Any]:
        self._running()
        return []

    def can_enqueue_requests(self) -> bool:
        self._alive()
        return self._world.leads

    def get_kv_cache_event_manager(self) -> None:
        self._alive()

    def shutdown(self) -> None:
        """Ends active requests first, and those that were queued unless they are fetched together with the marker."""
        self._alive()
        if not self._shut:
            self._shut = True
            if self._world.leads:
                self._mailbox.close()
                self._loop.close()
            self._world.meet()

    def __enter__(self) -> Executor:
        self._alive()
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self.shutdown()
        self._freed = True

    def __del__(self) -> None:
        if not self.__dict__.get("_shut", True) and not sys.is_finalizing():
            self.shutdown()

    def _alive(self) -> None:
        if self._freed:
            raise RuntimeError("the executor was freed when its with block was left; upstream would crash")

    def _running(self) -> None:
        self._alive()
        if self._shut:
            raise RuntimeError(thrown(SHUTDOWN))
