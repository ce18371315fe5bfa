"""`python -m scripts.soak.killed ADDRESS ID TOKENS`: a client that reads one endless answer, until it is killed."""

from __future__ import annotations

import asyncio
import sys

from trtspec.client import Accepted, Client


async def read(address: str, name: str, tokens: int) -> None:
    async with Client(address) as client:
        async for event in client.generate("on and on", request_id=name, max_tokens=tokens, ignore_eos=True):
            if isinstance(event, Accepted):
                print("ACCEPTED", flush=True)


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1], sys.argv[2], int(sys.argv[3])))
