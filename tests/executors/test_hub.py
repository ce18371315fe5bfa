"""What several front-ends of one executor share: ids, places, health; and what each has for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import pytest

from tests.executors.hubs import joined, served
from tests.fakes import FakeExecutor, Hold, Pass
from trtspec.errors import DuplicateRequest, EngineFault, EngineLost, Overloaded
from trtspec.executors.hub import Hub
from trtspec.executors.hub_messages import AskStats, Events, Joined, Reading, Run, Welcome
from trtspec.executors.remote import RemoteExecutor
from trtspec.service.gate import GatedExecutor, GateLimits
from trtspec.service.places import QueueLimits
from trtspec.types import EngineStats, Health, Request, RequestEvent, Started, StepOutput

MANY = 1000
"""Large outputs: more than what waits on a socket pair, on both its ends."""


def ask(name: str) -> Request:
    return Request(name, (40, 50, 60), 100)


def holding() -> FakeExecutor:
    """Gives one token, and the second when its event is set."""
    return FakeExecutor([Pass((40,), prefill=True), Hold(asyncio.Event()), Pass((41,))])


def let_go(executor: FakeExecutor) -> None:
    hold = executor.script[1]
    assert isinstance(hold, Hold)
    hold.event.set()


async def ids(events: AsyncGenerator[RequestEvent, None]) -> list[int]:
    async with aclosing(events):
        return [id_ async for event in events if isinstance(event, StepOutput) for id_ in event.token_ids]


async def begun(front: RemoteExecutor, name: str) -> AsyncGenerator[RequestEvent, None]:
    """A request that runs, and holds."""
    events = front.generate(ask(name))
    assert await anext(events) == Started(name)
    step = await anext(events)
    assert isinstance(step, StepOutput) and (step.request_id, step.token_ids) == (name, (40,))
    return events


async def test_an_id_is_unique_over_all_front_ends() -> None:
    executor = holding()
    hub = Hub(executor)
    async with joined(hub) as one, joined(hub) as other:
        live = await begun(one, "same")
        for front in (one, other):
            with pytest.raises(DuplicateRequest, match="same"):
                await ids(front.generate(ask("same")))
        let_go(executor)
        assert await ids(live) == [41]
        assert await ids(other.generate(ask("same"))) == [40, 41]


class Lingering(FakeExecutor):
    """Its requests take a while to leave, and keep their id until they have."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[str] = set()

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        if request.request_id in self.live:
            raise DuplicateRequest(request.request_id)
        self.live.add(request.request_id)
        try:
            yield Started(request.request_id)
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            self.live.remove(request.request_id)


async def test_an_id_is_free_as_soon_as_its_request_is_closed() -> None:
    async with joined(Hub(Lingering())) as front:
        for _ in range(3):
            async with aclosing(front.generate(ask("same"))) as events:
                assert await anext(events) == Started("same")


async def test_places_are_counted_over_all_front_ends() -> None:
    executor = holding()
    hub = Hub(GatedExecutor(executor, GateLimits(QueueLimits(1, 1))))
    async with joined(hub) as one, joined(hub) as other:
        live = [await begun(one, "a"), await begun(other, "b")]
        for front in (one, other):
            with pytest.raises(Overloaded, match="1 requests wait .* 1 is the limit") as caught:
                await ids(front.generate(ask("c")))
            assert caught.value.details == {"limit": "1"}
        await live[0].aclose()
        live.append(await begun(other, "c"))
        let_go(executor)
        assert [await ids(events) for events in live[1:]] == [[41], [41]]


async def test_a_front_end_that_goes_takes_its_own_requests_with_it_and_no_others() -> None:
    executor = holding()
    hub = Hub(executor)
    async with joined(hub) as stays, AsyncExitStack() as leaving:
        channel, serving = await leaving.enter_async_context(served(hub))
        leaves = await RemoteExecutor.join(channel)
        lost, kept = [await begun(leaves, "a"), await begun(leaves, "b")], await begun(stays, "c")
        await channel.close()
        assert await serving == 2
        assert sorted(executor.closed) == ["a", "b"]
        for events in lost:
            with pytest.raises(EngineLost, match="main process is gone"):
                await anext(events)
        assert leaves.health() is Health.FAILED
        with pytest.raises(EngineLost, match="failed"):
            await ids(leaves.generate(ask("late")))
        await leaves.aclose()
        let_go(executor)
        assert await ids(kept) == [41]


async def test_every_front_end_is_told_the_health_and_what_came_before_it_joined() -> None:
    executor = FakeExecutor()
    hub = Hub(executor)
    await executor.become(Health.RESTARTING)
    async with joined(hub) as one, joined(hub) as other:
        for front in (one, other):
            assert front.health() is Health.RESTARTING
        for before, after in ((Health.RESTARTING, Health.SERVING), (Health.SERVING, Health.FAILED)):
            await executor.become(after)
            assert [await front.wait_for_change(before) for front in (one, other)] == [after, after]


async def test_an_error_reaches_only_the_front_end_that_asked() -> None:
    executor = FakeExecutor([Pass((40,), prefill=True), EngineFault("two crashes", passes="2")])
    hub = Hub(executor)
    async with joined(hub) as one, joined(hub):
        with pytest.raises(EngineFault, match="two crashes") as caught:
            await ids(one.generate(ask("a")))
        assert caught.value.details == {"passes": "2"}


async def test_a_mistake_of_ours_ends_the_request_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeExecutor):
        def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
            raise ZeroDivisionError("a mistake")

    async with joined(Hub(Broken())) as front:
        with pytest.raises(EngineFault, match="a mistake"):
            await ids(front.generate(ask("a")))
    assert "ZeroDivisionError" in caplog.text


class Cancelled(FakeExecutor):
    """What works for its requests is cancelled, by whatever mistake."""

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        yield Started(request.request_id)
        work = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(work.cancel)
        await work


async def test_a_request_that_is_cancelled_inside_ends_for_its_front_end() -> None:
    async with joined(Hub(Cancelled())) as front:
        for _ in range(2):
            with pytest.raises(EngineFault, match="cancelled inside the server"):
                await asyncio.wait_for(ids(front.generate(ask("a"))), 20)


class Telling(FakeExecutor):
    """A request goes on in the moment in which somebody asks for the state."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        await self.told.wait()
        yield Started(request.request_id)

    async def stats(self) -> EngineStats:
        self.told.set()
        return EngineStats(passes=1)


async def test_no_event_that_is_older_than_a_reading_of_the_state_comes_after_it() -> None:
    async with served(Hub(Telling())) as (channel, _):
        for message in (Joined(), Run("a", ask("a")), AskStats()):
            channel.send(message)
        assert isinstance(await channel.receive(), Welcome)
        assert [await channel.receive(), await channel.receive()] == [
            Events((Started("a"),)),
            Reading(EngineStats(passes=1)),
        ]


class Endless(FakeExecutor):
    """Gives large outputs as long as somebody takes them."""

    taken = 0

    async def generate(self, request: Request) -> AsyncGenerator[RequestEvent, None]:
        while True:
            self.taken += 1
            yield StepOutput(request.request_id, 0, tuple(range(5000)), ())
            await asyncio.sleep(0)


async def test_a_front_end_that_does_not_read_is_waited_for() -> None:
    """The stream's own limit stops the reading of a channel whose messages nobody takes."""
    executor = Endless()
    async with served(Hub(executor)) as (channel, _):
        channel.send(Joined())
        channel.send(Run("a", ask("a")))
        assert isinstance(await channel.receive(), Welcome)
        taken = -1
        while executor.taken != taken and taken < MANY:
            taken = executor.taken
            for _ in range(100):
                await asyncio.sleep(0)
        assert 0 < executor.taken < MANY
