"""Time and room that run out: budgets, deadlines and a full queue."""

from __future__ import annotations

import asyncio

import grpc
from google.rpc import error_details_pb2, status_pb2

from tests.live.servers import ENDLESS, Stream, refused
from trtspec.client import Client
from trtspec.types import FinishReason
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc

FLAGS = ("--kv-cache-mib", "32", "--max-batch-size", "1", "--max-queued-requests", "1")
Code = grpc.StatusCode


async def check_cut_short(client: Client, stream: Stream) -> None:
    """The request ended by time, and what came is the beginning of the whole text."""
    assert stream.finished and stream.finished.reason is FinishReason.DEADLINE
    assert 1 <= stream.finished.completion_tokens == len(stream.ids) < ENDLESS["max_tokens"]
    whole = await client.complete("the answer", **ENDLESS | {"max_tokens": len(stream.ids)})
    assert (list(whole.token_ids), whole.text) == (stream.ids, stream.text)


async def test_a_time_budget_ends_a_long_answer_with_the_text_so_far(client: Client) -> None:
    stream = await Stream(client, "the answer", **ENDLESS, time_budget=0.8).end()
    await check_cut_short(client, stream)
    assert stream.finished and stream.finished.total_seconds and stream.finished.total_seconds >= 0.8


async def test_the_deadline_of_the_call_does_too(client: Client) -> None:
    stream = await Stream(client, "the answer", **ENDLESS, timeout=2.5).end()
    await check_cut_short(client, stream)


async def test_time_that_is_over_in_the_queue_is_an_error_before_anything_is_sent(client: Client) -> None:
    live = await Stream(client, "the answer", **ENDLESS).begin()
    error = await refused(client, "waiting", time_budget=0.2)
    assert error.status is Code.DEADLINE_EXCEEDED and error.reason == "DEADLINE_EXCEEDED"
    assert live.finished is None
    await live.cancel()


async def test_a_full_queue_refuses_with_a_pause_to_wait_and_the_queued_request_has_its_turn(
    client: Client, channel: grpc.aio.Channel
) -> None:
    live = await Stream(client, "the answer", **ENDLESS).begin()
    message = pb.GenerateRequest(text="waiting", stopping=pb.StoppingOptions(max_tokens=5, ignore_eos=True))

    async def ask() -> list[pb.GenerateResponse]:
        return [response async for response in rpc.InferenceStub(channel).Generate(message)]

    # One place in the queue for two requests: whichever comes second is refused, while the other goes on waiting.
    both = [asyncio.create_task(ask()), asyncio.create_task(ask())]
    done, waiting = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    [error] = [task.exception() for task in done]
    assert isinstance(error, grpc.aio.AioRpcError) and error.code() is Code.RESOURCE_EXHAUSTED
    assert "2 is the limit" in str(error.details())
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert any(detail.Unpack(info) for detail in status.details) and info.reason == "OVERLOADED"
    assert any(detail.Unpack(retry) for detail in status.details) and retry.retry_delay.seconds >= 1
    await live.cancel()
    [answer] = [await task for task in waiting]
    assert answer[-1].finished.usage.completion_token_count == 5
