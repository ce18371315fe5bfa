"""In-flight batching over the wire, told by the index of passes and never by a clock."""

from __future__ import annotations

import pytest

from tests.live.servers import ENDLESS, Stream
from trtspec.client import Client
from trtspec.types import FinishReason

FLAGS = ("--kv-cache-mib", "1")
POOL_TOKENS = 2048
"""What one MiB holds, which is the context too."""
FIRST = {"prompt": "the first request", "max_tokens": 400, "ignore_eos": True, "temperature": 0.8, "seed": 11}
SECOND = {"prompt": "another", "max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 12}


@pytest.mark.parametrize("speculation", ["off", "on"])
async def test_a_request_that_arrives_later_joins_the_passes_of_the_one_that_runs(
    client: Client, speculation: str
) -> None:
    alone = [await Stream(client, **options, speculation=speculation).end() for options in (FIRST, SECOND)]
    first = await Stream(client, **FIRST, speculation=speculation).begin()
    second = await Stream(client, **SECOND, speculation=speculation).end()
    await first.end()
    indices = [[record.index for record in stream.passes] for stream in (first, second)]
    assert indices[0][0] < indices[1][0] < indices[1][-1] < indices[0][-1]
    assert set(indices[1][1:]) <= set(indices[0]), "from its second pass on, the later one shares every pass"
    for batched, single in zip((first, second), alone, strict=True):
        assert (batched.ids, batched.text) == (single.ids, single.text)


async def test_a_cancelled_request_disturbs_no_other_and_gives_its_blocks_back(client: Client) -> None:
    alone = await Stream(client, **SECOND).end()
    # The pool holds the long one and little more, so the full-size request needs what it leaves behind.
    long = await Stream(client, [9] * 1500, **ENDLESS | {"max_tokens": 400}).begin()
    second = await Stream(client, **SECOND).begin()
    await long.cancel()
    await second.end()
    assert (second.ids, second.text) == (alone.ids, alone.text)
    # A block that did not come back would leave the last positions without a place, for ever: hence the time limit.
    full = await Stream(client, [7] * (POOL_TOKENS - 300), max_tokens=300, ignore_eos=True, time_budget=60).end()
    assert full.finished and full.finished.reason is FinishReason.LENGTH
    assert len(full.ids) == 300
    again = await Stream(client, **SECOND).end()
    assert again.ids == alone.ids
