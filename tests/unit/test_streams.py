"""The parent's mailboxes: what is merged, in which order it is read, and when a request has ended."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from trtspec.errors import EngineFault
from trtspec.executors.messages import Cancel, Command, Submit
from trtspec.executors.streams import Mailbox, RequestStreams
from trtspec.types import Failed, Finish, FinishReason, PassRecord, Request, Started, StepOutput

LENGTH = Finish(FinishReason.LENGTH)
REQUEST = Request("a", (1,), 9, n=3)


def output(index: int, *ids: int, finish: Finish | None = None) -> StepOutput:
    return StepOutput("a", index, ids, (PassRecord(0, emitted=len(ids)),), finish)


async def read(mailbox: Mailbox) -> list[object]:
    events = []
    while (event := await mailbox.get()) is not None:
        events.append(event)
    return events


async def test_unread_outputs_of_one_index_are_merged_and_the_indices_stay_apart() -> None:
    mailbox = Mailbox(REQUEST)
    events = [Started("a"), output(0, 1), output(1, 2), output(0, 3, finish=LENGTH), output(2, 4), output(1, 5)]
    for event in [*events, output(2, finish=LENGTH), output(1, finish=LENGTH)]:
        assert not mailbox.ended
        mailbox.put(event)
    assert mailbox.ended
    start, *outputs = await read(mailbox)
    assert start == Started("a")
    assert [(item.output_index, item.token_ids, item.finish) for item in outputs] == [
        (0, (1, 3), LENGTH),
        (1, (2, 5), LENGTH),
        (2, (4,), LENGTH),
    ]
    assert [len(item.passes) for item in outputs] == [2, 3, 2]


async def test_an_index_that_was_read_waits_behind_those_that_were_not() -> None:
    mailbox = Mailbox(REQUEST)
    for event in (output(0, 1), output(1, 2)):
        mailbox.put(event)
    assert await mailbox.get() == output(0, 1)
    mailbox.put(output(0, 3))
    assert await mailbox.get() == output(1, 2)
    assert await mailbox.get() == output(0, 3)


async def test_a_failure_comes_after_what_was_delivered_and_ends_all_outputs() -> None:
    mailbox = Mailbox(REQUEST)
    for event in (Started("a"), output(2, 7), Failed("a", EngineFault("broken"))):
        mailbox.put(event)
    assert mailbox.ended
    assert [await mailbox.get(), await mailbox.get()] == [Started("a"), output(2, 7)]
    with pytest.raises(EngineFault, match="broken"):
        await mailbox.get()


async def run_and_close_after(events: int) -> list[Command]:
    """What a reader that leaves after so many events makes the streams send."""
    streams, sent = RequestStreams(), []
    async with aclosing(streams.run(REQUEST, sent.append)) as stream:
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        key = sent[0].request.request_id
        done = [StepOutput(key, index, (5,), (), LENGTH) for index in range(3)]
        streams.deliver([Started(key), *done])
        assert await first == Started("a")
        for index in range(events):
            assert await anext(stream) == StepOutput("a", index, (5,), (), LENGTH)
    assert streams.live == 0
    return sent


@pytest.mark.parametrize("events", [0, 2, 3])
async def test_a_request_all_of_whose_outputs_ended_is_not_cancelled(events: int) -> None:
    assert [type(command) for command in await run_and_close_after(events)] == [Submit]


async def test_a_request_one_of_whose_outputs_still_runs_is_cancelled() -> None:
    streams, sent = RequestStreams(), []
    async with aclosing(streams.run(REQUEST, sent.append)) as stream:
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        key = sent[0].request.request_id
        streams.deliver([StepOutput(key, index, (5,), (), LENGTH) for index in range(2)])
        assert (await first).output_index == 0
        assert (await anext(stream)).output_index == 1
    assert sent[1:] == [Cancel(key)]


CANCELLED = Finish(FinishReason.CANCELLED)


async def test_a_cancel_ends_what_lives_behind_what_is_unread_and_nothing_follows() -> None:
    mailbox = Mailbox(REQUEST)
    for event in (Started("a"), output(0, 1), output(1, 2, finish=LENGTH)):
        mailbox.put(event)
    mailbox.cancel()
    for late in (output(0, 9), output(2, 9, finish=LENGTH), Failed("a", EngineFault("late"))):
        mailbox.put(late)
    start, *outputs = await read(mailbox)
    assert start == Started("a")
    assert [(item.output_index, item.token_ids, item.finish) for item in outputs] == [
        (0, (1,), CANCELLED),
        (1, (2,), LENGTH),
        (2, (), CANCELLED),
    ]


async def test_a_cancel_in_the_queue_starts_and_ends() -> None:
    mailbox = Mailbox(REQUEST)
    mailbox.cancel()
    start, *outputs = await read(mailbox)
    assert start == Started("a")
    assert [(item.output_index, item.token_ids, item.finish) for item in outputs] == [
        (index, (), CANCELLED) for index in range(3)
    ]


async def test_the_engine_is_told_of_a_cancel_once_and_late_events_go_nowhere() -> None:
    streams, sent = RequestStreams(), []
    assert not streams.cancel("a", sent.append)
    async with aclosing(streams.run(REQUEST, sent.append)) as stream:
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        key = sent[0].request.request_id
        streams.deliver([Started(key), StepOutput(key, 0, (5,), (), LENGTH)])
        assert await first == Started("a")
        assert streams.cancel("a", sent.append) and not streams.cancel("a", sent.append)
        assert streams.live == 0 and streams.in_flight == []
        streams.deliver([StepOutput(key, 1, (6,), (), LENGTH)])
        ends = [(event.output_index, event.token_ids, event.finish) async for event in stream]
    assert ends == [(0, (5,), LENGTH), (1, (), CANCELLED), (2, (), CANCELLED)]
    assert sent[1:] == [Cancel(key)]
    assert not streams.cancel("a", sent.append)
