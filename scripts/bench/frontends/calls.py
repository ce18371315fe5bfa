"""`python -m scripts.bench.frontends.calls PORT STREAMS CONNECTIONS MESSAGES`: what `wire` does, by gRPC's client.

Messages are not parsed, so that they cost the same whatever they hold.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc

from scripts.bench.frontends.load import APART
from scripts.bench.frontends.wire import MARK


async def measure(port: int, streams: int, count: int, path: str, request: bytes) -> list[list[int]]:
    """Sizes of the messages of each stream."""
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=APART) for _ in range(count)]
    methods: list[Any] = [channel.unary_stream(path) for channel in channels]

    async def read(number: int) -> list[int]:
        own = request.replace(MARK, b"%08d" % number)
        return [len(message) async for message in methods[number % count](own)]

    got = await asyncio.gather(*map(read, range(streams)))
    for channel in channels:
        await channel.close()
    return got


def main(argv: Sequence[str]) -> None:
    port, streams, count, messages = map(int, argv)
    path, _, request = sys.stdin.buffer.read().partition(b"\n")
    started, cpu = time.perf_counter(), time.process_time()
    got = asyncio.run(measure(port, streams, count, path.decode(), request))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    if wrong := [len(sizes) for sizes in got if len(sizes) != messages]:
        raise SystemExit(f"{len(wrong)} streams brought not {messages} messages but {sorted(set(wrong))}")
    print(json.dumps({"seconds": seconds, "bytes": sum(map(sum, got)), "cpu_seconds": cpu}))


if __name__ == "__main__":
    main(sys.argv[1:])
