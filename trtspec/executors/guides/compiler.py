"""Guides on their way to an engine: tried in a process of their own, made ready in a thread, and kept for a while."""

from __future__ import annotations

import logging
import queue
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from trtspec.errors import EngineFault, InvalidField, RequestError
from trtspec.executors.guides.rehearsing import Rehearsal
from trtspec.guides import Guide

_log = logging.getLogger(__name__)

AT_ONCE = 2
"""Guides that are tried together: one that takes its whole time does not hold back the next one."""
MOST_KEPT = 128
MOST_KEPT_BYTES = 64 << 20

Answer = Guide | RequestError
"""A guide as the engine takes it, or why it does not."""


class Kept:
    """Answers, the last used ones: so many, and of so many bytes."""

    def __init__(self, most: int = MOST_KEPT, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._answers: OrderedDict[Guide, Answer] = OrderedDict()
        self._bytes = 0

    def get(self, guide: Guide) -> Answer | None:
        answer = self._answers.get(guide)
        if answer is not None:
            self._answers.move_to_end(guide)
        return answer

    def put(self, guide: Guide, answer: Answer) -> None:
        self._answers[guide] = answer
        self._bytes += _size(guide, answer)
        while len(self._answers) > self._most or (self._bytes > self._most_bytes and len(self._answers) > 1):
            self._bytes -= _size(*self._answers.popitem(last=False))


def _size(guide: Guide, answer: Answer) -> int:
    return len(guide.text) + int(getattr(answer, "size", 0))


class GuideCompiler:
    """Answers for guides. `finish` makes ready for the engine what has been tried, in a thread."""

    def __init__(self, rehearsal: Callable[[], Rehearsal], finish: Callable[[Guide], Guide]) -> None:
        self._rehearsals = [rehearsal() for _ in range(AT_ONCE)]
        self._free: queue.LifoQueue[Rehearsal] = queue.LifoQueue()  # the second process starts when it is needed
        for item in reversed(self._rehearsals):
            self._free.put(item)
        self._finish = finish
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="guides")
        self._lock = Lock()
        self._kept = Kept()
        self._coming: dict[Guide, Future[Answer]] = {}

    def known(self, guide: Guide) -> Answer | None:
        """The answer, where it is there already."""
        with self._lock:
            return self._kept.get(guide)

    def ask(self, guide: Guide, done: Callable[[Answer], None]) -> None:
        """Find the answer, and hand it over in whatever thread. Guides that are equal are tried once."""
        with self._lock:
            future = self._coming.get(guide)
            if future is None:
                future = self._coming[guide] = self._threads.submit(self._answer, guide)
        future.add_done_callback(lambda found: None if found.cancelled() else done(found.result()))

    def close(self) -> None:
        """End all that is under way."""
        for rehearsal in self._rehearsals:
            rehearsal.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for rehearsal in self._rehearsals:
            rehearsal.end()

    def _answer(self, guide: Guide) -> Answer:
        answer = self._try(guide)
        with self._lock:
            if not isinstance(answer, EngineFault):  # which another try may not meet
                self._kept.put(guide, answer)
            self._coming.pop(guide, None)
        return answer

    def _try(self, guide: Guide) -> Answer:
        rehearsal = self._free.get()
        try:
            rehearsal.check(guide)
            return self._finish(guide)
        except InvalidField as error:
            return error
        except Exception as error:  # whatever it is, the request must not wait for ever
            _log.exception("a guide cannot be tried")
            return error if isinstance(error, RequestError) else EngineFault(f"a guide cannot be tried: {error!r}")
        finally:
            self._free.put(rehearsal)
