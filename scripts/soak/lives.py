"""Kinds of clients: those that read to the end, and those that leave, are too slow, run out of time or are killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from scripts.soak.counting import Seen
from trtspec.client import Accepted, Chunk, Client, Finished, RequestFailed

ENDLESS = 1500
"""More tokens than a request gets before something happens to it."""
EXPECTED = (
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""Errors of such lives: time that was over in the queue, nonsense, a full queue."""
PAUSE_SECONDS = 0.3
"""Before a client that met one asks again."""
Random = random.Random
Requests = dict[str, Seen]


class Reached(Client):
    """A client that knows where it is connected."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


async def _read(
    client: Client, seen: Seen, name: str, tokens: int, chunks: int = sys.maxsize, pause: float = 0.0, **options: Any
) -> None:
    """Read so many chunks at most, each after a pause, and then leave."""
    events = client.generate(
        f"tell me of {name}", request_id=name, max_tokens=tokens, ignore_eos=True, temperature=1.0, **options
    )
    async with aclosing(events):
        async for event in events:
            match event:
                case Accepted():
                    seen.accepted = True
                case Chunk():
                    seen.tokens += len(event.token_ids)
                    chunks -= 1
                case Finished():
                    seen.finished = event.completion_tokens
            if chunks <= 0:
                return
            await asyncio.sleep(pause)


async def reads_all(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    await _read(client, seen, name, rng.randint(1, 200))


async def leaves(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    await _read(client, seen, name, ENDLESS, chunks=rng.choice([0, 1, 1, 2, 5, 30]))


async def leaves_at_once(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    reading = asyncio.ensure_future(_read(client, seen, name, ENDLESS))
    await asyncio.sleep(rng.random() * 0.02)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def has_a_deadline(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    await _read(client, seen, name, ENDLESS, timeout=rng.uniform(0.01, 1.0))


async def has_a_budget(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    await _read(client, seen, name, ENDLESS, time_budget=rng.uniform(0.01, 1.0))


async def reads_slowly(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    await _read(client, seen, name, rng.randint(100, 400), chunks=rng.randint(5, 40), pause=0.1)


async def drops_its_channel(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    async with Client(client.address) as own:
        reading = asyncio.ensure_future(_read(own, seen, name, ENDLESS))
        await asyncio.sleep(rng.random())
    await asyncio.gather(reading, return_exceptions=True)


async def asks_for_too_much(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    await _read(client, seen, name, ENDLESS, min_p=2.0)


async def is_killed(client: Reached, seen: Seen, name: str, rng: Random) -> None:
    """A process of its own, that gets no chance to say goodbye."""
    command = [sys.executable, "-m", "scripts.soak.killed", client.address, name, str(ENDLESS)]
    pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=nowhere)
    assert process.stdout
    line = await process.stdout.readline()
    seen.accepted = line == b"ACCEPTED\n"
    await asyncio.sleep(rng.random() * 0.5)
    with contextlib.suppress(ProcessLookupError):  # it was refused, and is gone
        process.kill()
    await process.wait()


Life = Callable[[Reached, Seen, str, Random], Awaitable[None]]
LIVES: dict[Life, int] = {
    reads_all: 30,
    leaves: 20,
    leaves_at_once: 10,
    has_a_deadline: 10,
    has_a_budget: 10,
    reads_slowly: 8,
    drops_its_channel: 6,
    asks_for_too_much: 4,
    is_killed: 1,
}
"""By how often each is led."""


async def lead(address: str, requests: Requests, rng: Random, over: Callable[[], bool], number: int) -> None:
    """One life after another, over one connection."""
    lives, weights = list(LIVES), list(LIVES.values())
    async with (client := Reached(address)):
        for count in itertools.count():
            if over():
                return
            [life] = rng.choices(lives, weights)
            name = f"{number}-{count}"
            requests[name] = Seen(life.__name__)
            try:
                await life(client, requests[name], name, rng)
            except RequestFailed as error:
                if error.status not in EXPECTED:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
