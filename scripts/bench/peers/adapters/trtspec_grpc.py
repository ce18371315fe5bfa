"""Ours over gRPC: `trtspec serve` on the loopback address and the Python client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from scripts.bench.peers.adapters.trtspec import several
from scripts.bench.peers.jobs import Generate, Job, Work
from trtspec.client import Client

STOP_SECONDS = 30


@contextmanager
def opened(job: Job) -> Iterator[Generate]:
    command = [sys.executable, "-m", "trtspec", "serve", job.model, "--port", "0", "--threads", str(job.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = _address(server)
            with _client(address) as (loop, client):

                async def one(prompt: Sequence[int], work: Work) -> int:
                    answer = await client.complete(
                        prompt,
                        max_tokens=work.max_new_tokens,
                        temperature=0.0,
                        ignore_eos=work.ignore_eos,
                        speculation="on" if job.speculates else "off",
                    )
                    return len(answer.token_ids)

                yield lambda work: loop.run_until_complete(several(one, work, job.concurrency))
        finally:
            server.terminate()
            server.communicate(timeout=STOP_SECONDS)


def _address(server: subprocess.Popen[str]) -> str:
    """Where it serves; the line comes once the engine is warm."""
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="")
        if line.startswith("SERVING "):
            return line.split()[1]
    raise RuntimeError(f"the server ended with {server.wait()} before it served")


@contextmanager
def _client(address: str) -> Iterator[tuple[asyncio.AbstractEventLoop, Client]]:
    async def connect() -> Client:
        return Client(address)  # gRPC binds a channel to the loop that it is made on

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(connect())
    try:
        yield loop, client
    finally:
        loop.run_until_complete(client.__aexit__(None, None, None))
        loop.close()
