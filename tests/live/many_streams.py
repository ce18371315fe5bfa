"""`python -m tests.live.many_streams PORT STREAMS TOKENS`: a client whose streams each check what they get, in order.

Stream n asks with the one token `FIRST + n`, and must get the ids that follow it. Prints how many streams were whole.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

FIRST = 1000
CONNECTIONS = 8


async def whole(stub: rpc.InferenceStub, number: int, tokens: int) -> bool:
    """One stream; whether nothing of it is lost, doubled or reordered."""
    first = FIRST + number
    request = pb.GenerateRequest(
        request_id=str(number),
        token_ids=pb.TokenIds(ids=[first]),
        stopping=pb.StoppingOptions(max_tokens=tokens, ignore_eos=True),
    )
    got = [response async for response in stub.Generate(request)]
    ids = [id_ for response in got[1:-1] for id_ in response.chunk.token_ids]
    passes = [record.pass_index for response in got[1:-1] for record in response.chunk.passes]
    return (
        got[0].accepted.request_id == str(number)
        and ids == list(range(first + 1, first + 1 + tokens))
        and passes == list(range(tokens))
        and got[-1].finished.usage.completion_token_count == tokens
    )


async def count(port: int, streams: int, tokens: int) -> int:
    """All streams at once."""
    apart = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=apart) for _ in range(CONNECTIONS)]
    stubs = [rpc.InferenceStub(channel) for channel in channels]
    found = await asyncio.gather(*(whole(stubs[number % CONNECTIONS], number, tokens) for number in range(streams)))
    for channel in channels:
        await channel.close()
    return sum(found)


if __name__ == "__main__":
    print(asyncio.run(count(*map(int, sys.argv[1:]))))
