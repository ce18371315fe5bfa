"""Work until a cue: where it is cut, where it is not, and that nobody else's cancellation is taken for the cue's."""

from __future__ import annotations

import asyncio
import sys

import pytest

from trtspec.service.waiting import Until, give, new_cue


async def test_a_cue_ends_the_wait_and_the_task_goes_on() -> None:
    cue = new_cue()
    asyncio.get_running_loop().call_soon(give, cue)
    with Until(cue):
        await asyncio.Event().wait()
        raise AssertionError("not reached")
    await asyncio.sleep(0)  # no cancellation is left over
    assert cue.done()


async def test_a_busy_task_is_not_cut_and_may_look_at_the_cue() -> None:
    cue = new_cue()
    seen = []
    with Until(cue) as until:
        until.busy = True
        give(cue)
        await asyncio.sleep(0)
        seen.append(cue.done())
    assert seen == [True]


async def test_a_cue_that_comes_as_the_work_ends_cuts_nothing_behind_it() -> None:
    cue = new_cue()
    with Until(cue):
        give(cue)  # told to the context only in the next turn of the loop, which is behind it
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_cancellation_of_the_task_is_passed_on() -> None:
    cue, waiting = new_cue(), asyncio.Event()

    async def work() -> None:
        with Until(cue):
            waiting.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not count cancellations")
async def test_a_cancellation_in_the_moment_of_the_cue_wins() -> None:
    cue, waiting = new_cue(), asyncio.Event()

    async def work() -> None:
        with Until(cue):
            waiting.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await waiting.wait()
    give(cue)
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_inside_is_an_error_outside() -> None:
    with pytest.raises(ZeroDivisionError), Until(new_cue()):
        raise ZeroDivisionError
