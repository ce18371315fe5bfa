"""What one process holds: bounded before anything is worked on, and nothing of what it refuses."""

from __future__ import annotations

import asyncio
import gc
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.fakes import FakeExecutor, serving
from tests.service.test_gate import ROOMY, Time, blocked, status
from trtspec.errors import ClientBusy, Overloaded, RateLimited
from trtspec.service import admission
from trtspec.service.admission import Admission, AdmissionLimits
from trtspec.service.gate import GatedExecutor, GateLimits
from trtspec.service.options import AdmissionOptions, ServeOptions
from trtspec.service.quotas import ClientLimits, rate_limited
from trtspec.service.text import Tokenizer
from trtspec.v1 import inference_pb2 as pb
from trtspec.v1 import inference_pb2_grpc as rpc


async def test_bytes_of_requests_that_wait_are_bounded_until_they_start() -> None:
    door = Admission(AdmissionLimits(requests=10, waiting_bytes=100))
    with ExitStack() as live:
        first = live.enter_context(door.admit("a", message_bytes=80))
        with pytest.raises(Overloaded, match="of 80 bytes wait, this one has 21; 100 is the limit"):
            live.enter_context(door.admit("b", message_bytes=21))
        first.start()
        first.start()
        live.enter_context(door.admit("b", message_bytes=60))
        live.enter_context(door.admit("c", message_bytes=40))
        with pytest.raises(Overloaded):
            live.enter_context(door.admit("d", message_bytes=1))
    with door.admit("alone", message_bytes=1000):
        pass


async def test_a_client_has_so_many_live_requests_in_one_process() -> None:
    door = Admission(AdmissionLimits(requests=10, client_requests=1))
    with ExitStack() as live:
        live.enter_context(door.admit("1", "a"))
        live.enter_context(door.admit("2", "b"))
        with pytest.raises(ClientBusy, match="1 is the limit"):
            live.enter_context(door.admit("3", "a"))
    with door.admit("3", "a"):
        pass


async def test_a_refusal_by_the_gate_is_remembered_for_as_long_as_it_lasts() -> None:
    time = Time()
    door = Admission(AdmissionLimits(requests=10), time)
    with pytest.raises(RateLimited), door.admit("1", "a"):
        raise rate_limited("too much", 30.0, 20.0)
    time.now = 19.0
    with pytest.raises(RateLimited) as caught, door.admit("2", "a"):
        pytest.fail("it was let in")
    assert caught.value.details == {"retry_seconds": "1.000", "closed_seconds": "1.000"}
    with door.admit("3", "b"):
        pass
    time.now = 20.0
    with door.admit("2", "a"):
        pass


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    door = Admission(AdmissionLimits(requests=10), time)
    monkeypatch.setattr(admission, "_MOST_CLOSED", 8)
    for number in range(30):
        with pytest.raises(RateLimited), door.admit("1", str(number)):
            raise rate_limited("too much", 30.0, 20.0)
        assert len(door._closed) <= admission._MOST_CLOSED
    time.now = 30.0
    with pytest.raises(RateLimited), door.admit("1", "new"):
        raise rate_limited("too much", 30.0, 20.0)
    assert list(door._closed) == ["new"]


async def test_a_client_without_budget_costs_no_tokenizing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = Tokenizer.encode

    def recorded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
        encoded.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", recorded)
    gate = GatedExecutor(FakeExecutor(), GateLimits(ROOMY, ClientLimits(requests_per_minute=1)))
    async with serving(gate) as server:  # type: ignore[arg-type]
        stub = rpc.InferenceStub(server.channel)
        for _ in range(5):
            await asyncio.gather(stub.Generate(pb.GenerateRequest(text="hi")).read(), return_exceptions=True)
    assert len(encoded) == 2  # the one that was let in, and the one that the gate refused


MOST_GROWTH = 24 << 20


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["requests", "bytes", "client"])
async def test_ten_thousand_refused_calls_leave_nothing_in_memory(bound: str) -> None:
    """Each has 16 KiB; if one byte in seven stayed, it would show."""
    limits = {
        "requests": AdmissionOptions(max_queued_requests=0),
        "bytes": AdmissionOptions(max_queued_bytes=1 << 14),
        "client": AdmissionOptions(max_client_requests=4),
    }
    executor = blocked()
    async with serving(executor, ServeOptions(port=0, admission=limits[bound])) as server:
        stub = rpc.InferenceStub(server.channel)
        ids = {"ids": [5] * 100}
        waiting = [stub.Generate(pb.GenerateRequest(token_ids=ids)) for _ in range(4)]
        await executor.asked.wait()
        while len(executor.requests) < 4:
            await asyncio.sleep(0)
        message = pb.GenerateRequest(token_ids=ids, tags={str(number): "x" * 128 for number in range(16)})
        message.stopping.stop_strings.extend(["y" * 240] * 60)
        before = 0
        for group in range(110):
            calls = [stub.Generate(message) for _ in range(100)]
            for call in calls:
                found = await status(call)
                assert found["code"] is grpc.StatusCode.RESOURCE_EXHAUSTED and "RetryInfo" in found
            if group == 9:
                gc.collect()
                before = resident()
        gc.collect()
        assert resident() - before < MOST_GROWTH
        assert len(executor.requests) == 4
        for call in waiting:
            call.cancel()


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
