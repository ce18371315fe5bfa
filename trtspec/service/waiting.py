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
