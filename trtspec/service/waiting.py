"""Work that an outside event may end early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

Cue = asyncio.Future[None]
"""It is given once or never. Waiting for it is cheap enough for every event of a stream."""


def new_cue() -> Cue:
    """A cue of the running loop."""
    return asyncio.get_running_loop().create_future()


def give(cue: Cue) -> None:
    """Give a cue; it may have been given already."""
    if not cue.done():
        cue.set_result(None)


class Until:
    """Work of the running task until a cue, as `asyncio.timeout` lets it run until a time.

    The task is cancelled where it waits, and goes on behind the context. While it is `busy` the cue only is there to be
    looked at. That costs nothing for each wait, which `unless` would give a task of its own.
    """

    def __init__(self, cue: Cue) -> None:
        self.busy = False
        self._cue = cue
        self._task = asyncio.current_task()
        self._ended = False

    def __enter__(self) -> Until:
        self._cue.add_done_callback(self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.busy = True  # a cue of this moment may be on its way already
        self._cue.remove_done_callback(self._end)
        return kind is asyncio.CancelledError and self._ended and self._alone()

    def _end(self, _: Cue) -> None:
        if not self.busy and self._task is not None:
            self._ended = True
            self._task.cancel()

    def _alone(self) -> bool:
        """Nobody else cancelled the task in the same moment; Python 3.10 does not tell."""
        uncancel = getattr(self._task, "uncancel", None)
        return uncancel is None or uncancel() == 0


async def unless(cue: Cue, work: Awaitable[T]) -> T | None:
    """The result of the work, or None where the cue came first and the work was cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, cue), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def cancelled_from_outside(error: BaseException) -> bool:
    """Whether it was the running task that was cancelled, and not what it waited for; Python 3.10 cannot tell."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return not isinstance(error, asyncio.CancelledError) or cancelling is None or cancelling() > 0
