"""`python -m scripts.bench.frontends.load ADDRESS CONCURRENCY TOKENS`: a client process that streams as fast as it can.

Each stream has a connection of its own, as separate clients would have: the kernel spreads connections over front-ends,
not requests. Prints how many tokens came and in how many seconds. It reads the messages' ids only, so that the client
costs little beside the server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence

import grpc

from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc
from trtspec.v1 import speculation_pb2 as spec

APART = [("grpc.use_local_subchannel_pool", 1)]
"""Without this, all channels of a process share one connection."""
PROMPT_TOKENS = 16


async def stream(address: str, number: int, tokens: int) -> int:
    """Generate without speculation, a message a token, and count what comes."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=range(10 + number, 10 + number + PROMPT_TOKENS)),
        stopping=pb.StoppingOptions(max_tokens=tokens, ignore_eos=True),
        speculation=spec.SpeculationOptions(mode=spec.SPECULATION_MODE_OFF),
    )
    async with grpc.aio.insecure_channel(address, options=APART) as channel:
        return sum([len(message.chunk.token_ids) async for message in rpc.InferenceStub(channel).Generate(request)])


async def measure(address: str, concurrency: int, tokens: int) -> dict[str, float]:
    """Run so many streams at once."""
    started = time.perf_counter()
    counts = await asyncio.gather(*(stream(address, number, tokens) for number in range(concurrency)))
    return {"tokens": sum(counts), "seconds": time.perf_counter() - started}


def main(argv: Sequence[str]) -> None:
    address, concurrency, tokens = argv
    print(json.dumps(asyncio.run(measure(address, int(concurrency), int(tokens)))))


if __name__ == "__main__":
    main(sys.argv[1:])
