"""The client class against a real server."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.fakes import FakeExecutor, Hold, Pass, ids_of, script_of, serving
from trtspec.client import Accepted, Chunk, Client, Finished, RequestFailed
from trtspec.errors import EngineLost
from trtspec.types import FinishReason, Method


async def test_events_are_typed_and_in_order() -> None:
    async with serving(FakeExecutor(script_of("abcd", 3))) as server, Client(server.address) as client:
        events = [event async for event in client.generate("hi", seed=3, max_draft_tokens=2)]
    accepted, first, second, finished = events
    assert isinstance(accepted, Accepted) and isinstance(first, Chunk) and isinstance(finished, Finished)
    assert (accepted.seed, accepted.method, accepted.max_draft_tokens) == (3, Method.NGRAM, 2)
    assert isinstance(second, Chunk) and second.text == "bcd" and second.passes[0].accepted == 2
    assert finished.reason is FinishReason.LENGTH and finished.completion_tokens == 4
    assert finished.stats is not None and finished.stats.completion_tokens == 4
    finished.stats.check()


async def test_every_kind_of_prompt_reaches_the_engine() -> None:
    executor = FakeExecutor(script_of("ab", 1))
    chat = [{"role": "user", "content": "hi"}]
    async with serving(executor) as server, Client(server.address) as client:
        for prompt in ("hi", list(ids_of("hi")), chat):
            await client.complete(prompt)
        chat_ids = await client.tokenize(chat)
    assert [live.prompt for live in executor.requests] == [ids_of("hi"), ids_of("hi"), chat_ids]


async def test_complete_collects_text_and_ids() -> None:
    async with serving(FakeExecutor(script_of("héllo", 2, 3))) as server, Client(server.address) as client:
        answer = await client.complete("x", stop=["lo"])
        final = await client.complete("x", granularity="final")
        info = await client.model_info()
    assert answer.text == "hél" and answer.finished.stop_string == "lo"
    assert final.text == "héllo"
    assert info.model == "tiny"


async def test_a_refusal_names_status_reason_and_field() -> None:
    async with serving(FakeExecutor()) as server, Client(server.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete("hi", temperature=-1.0)
    error = caught.value
    assert (error.status, error.reason, error.field) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "sampling.temperature",
    )
    assert error.partial is None and "0 to 100" in str(error)


async def test_a_failure_in_mid_stream_has_the_partial_totals() -> None:
    executor = FakeExecutor([*script_of("abcd", 3), EngineLost("gone")])
    async with serving(executor) as server, Client(server.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.complete("hi")
    assert caught.value.reason == "ENGINE_LOST"
    assert caught.value.partial is not None and caught.value.partial.completion_tokens == 4


async def test_leaving_the_loop_cancels_the_request() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server, Client(server.address) as client:
        events = client.generate("hi")
        await anext(events)
        await events.aclose()
        await executor.freed.wait()


async def test_a_time_budget_ends_the_answer() -> None:
    executor = FakeExecutor([Pass(ids_of("a"), prefill=True), Hold(asyncio.Event()), Pass(ids_of("b"))])
    async with serving(executor) as server, Client(server.address) as client:
        answer = await client.complete("hi", time_budget=0.05)
    assert answer.finished.reason is FinishReason.DEADLINE
