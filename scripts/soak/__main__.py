"""Random cancels, deadlines, disconnects, kills and slow readers against a server, for as long as you like.

    python -m scripts.soak --minutes 10 --engine DIR

The server runs in this process and its engine in a child, as `trtspec serve` does; clients come over TCP, and some are
processes of their own. In the end all blocks of the KV cache are free, no request and no task is left, what the server
counted is what the clients saw, and the answer to one request is what it was before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.soak.counting import Counting, Seen, disagreements
from scripts.soak.lives import Requests, lead
from trtspec.client import Client, Completion
from trtspec.config import EngineOptions
from trtspec.executors import open_executor
from trtspec.executors.base import Executor
from trtspec.service.model import served_model
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.server import Server
from trtspec.service.text import Tokenizer

CLIENTS = 24
BATCH = 8
QUEUED = 14
"""Together with the batch fewer places than clients, so that some are refused."""
SETTLE_SECONDS = 30.0
WITNESS = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 7}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a soak."""

    requests: Requests
    counting: Counting
    faults: list[str]
    megabytes: tuple[float, float]
    """Of this process: after a quarter of the time, and at the end."""


async def soak(engine: Path, seconds: float, seed: int, *, in_process: bool = False) -> Outcome:
    """Serve and be harassed."""
    options = ServeOptions(port=0, admission=AdmissionOptions(max_queued_requests=QUEUED))
    before = asyncio.all_tasks()
    engine_options = EngineOptions(max_batch_size=BATCH, kv_cache_mib=16, threads=1)
    executor = await open_executor(engine, engine_options, in_process=in_process)
    counting = Counting()
    server = Server(options, 1 << 20, counting)
    address = await server.bind()
    await server.open(served_model(executor.info(), engine, options), executor, Tokenizer.load(engine))
    try:
        requests: Requests = {}
        ours = asyncio.all_tasks()
        first = await _witness(address, requests, "before")
        early, late = await _harass(address, requests, seconds, random.Random(seed))
        last = await _witness(address, requests, "after")
        faults = await _settled(executor, server)
        if (first.token_ids, first.text) != (last.token_ids, last.text):
            faults.append("a request with a seed gets another answer than before")
        faults += await _left(ours)
    finally:
        await server.stop()
        await executor.aclose()
    faults += await _left(before) + disagreements(requests, counting)
    return Outcome(requests, counting, faults, (early, late))


async def _witness(address: str, requests: Requests, name: str) -> Completion:
    async with Client(address) as client:
        answer = await client.complete("the answer", request_id=name, **WITNESS)  # type: ignore[arg-type]
    count = len(answer.token_ids)
    requests[name] = Seen("witness", count, count, accepted=True)
    return answer


async def _harass(address: str, requests: Requests, seconds: float, rng: random.Random) -> tuple[float, float]:
    """All clients, until the time is over; gives the memory early and late."""
    end = time.monotonic() + seconds
    clients = [
        asyncio.create_task(
            lead(address, requests, random.Random(rng.random()), lambda: time.monotonic() >= end, number)
        )
        for number in range(CLIENTS)
    ]
    await asyncio.wait(clients, timeout=seconds / 4, return_when=asyncio.FIRST_EXCEPTION)
    early = _megabytes()
    await asyncio.gather(*clients)
    return early, _megabytes()


async def _settled(executor: Executor, server: Server) -> list[str]:
    """Wait for the server and the engine to be idle; what is not free then."""
    until = time.monotonic() + SETTLE_SECONDS
    while (stats := await executor.stats()).running or stats.waiting or stats.free_blocks != stats.total_blocks:
        if time.monotonic() > until:
            return [f"the engine is not idle: {stats}"]
        await asyncio.sleep(0.05)
    begun = time.monotonic()
    await server.drain()
    waited = time.monotonic() - begun
    return [f"the idle server took {waited:.1f} s to drain"] if waited > SETTLE_SECONDS / 2 else []


async def _left(before: set[asyncio.Task[object]]) -> list[str]:
    """Tasks that were not there before and do not end; gRPC's own ones, which wait for the next call, come and go."""
    until = time.monotonic() + SETTLE_SECONDS
    while left := [task for task in asyncio.all_tasks() - before if "coro=<AioServer" not in repr(task)]:
        if time.monotonic() > until:
            return [f"a task is left: {task!r}" for task in left]
        await asyncio.sleep(0.05)
    return []


def _megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def describe(outcome: Outcome) -> str:
    kinds = Counter(seen.kind for seen in outcome.requests.values())
    statuses = {status.name: count for status, count in outcome.counting.statuses.items()}
    tokens = sum(seen.tokens for seen in outcome.requests.values())
    early, late = outcome.megabytes
    return "\n".join(
        [
            f"{len(outcome.requests)} requests: {dict(kinds)}",
            f"{outcome.counting.arrived_calls} calls arrived and {outcome.counting.ended_calls} ended: {statuses}",
            f"{tokens} tokens seen by clients; memory {early:.0f} MB at a quarter of the time, {late:.0f} at the end",
            *(outcome.faults or ["all blocks are free, nothing is left, and the counts agree"]),
        ]
    )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--engine", type=Path, metavar="DIR", help="engine folder; without one a tiny engine is built")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what clients do (%(default)s)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        engine = options.engine or _tiny(Path(folder))
        outcome = asyncio.run(soak(engine, 60 * options.minutes, options.seed))
    print(describe(outcome))
    return 1 if outcome.faults else 0


def _tiny(folder: Path) -> Path:
    from scripts.bench.frontends.__main__ import tiny

    return tiny(folder, "ngram")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
