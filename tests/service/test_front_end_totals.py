"""With front-ends, counters are the sum over all processes, also over those that died."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.executors.conftest import children
from tests.fakes import FakeExecutor, engine_folder, script_of
from tests.service.test_status_port import STATUS, Running
from trtspec.client import Client, RequestFailed
from trtspec.config import EngineOptions
from trtspec.service.front_ends import serve
from trtspec.service.options import ServeOptions
from trtspec.types import Health


async def ask(address: str, count: int) -> int:
    """So many requests on connections of their own, so that front-ends share them; how many were answered."""
    answered = 0
    for _ in range(count):
        async with Client(address) as client:
            try:
                await client.complete("hi")
                answered += 1
            except RequestFailed:
                pass
    return answered


async def counted(server: Running, requests: int) -> dict[str, float]:
    """The metrics, once they have so many requests: front-ends tell once a second."""
    while True:
        found = await server.metrics()
        if found.get("trtspec_requests_total|code=OK", 0) >= requests:
            return found
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_no_counter_falls_with_a_front_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    executor = FakeExecutor(script_of("abcdef", 3, 2))
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    options = ServeOptions(port=0, frontends=2, telemetry=replace(STATUS, request_log=tmp_path / "log"))

    async def open_engine(path: Path, engine: EngineOptions) -> FakeExecutor:
        return executor

    task = asyncio.create_task(
        serve(engine_folder(tmp_path), options, EngineOptions(), lambda at, _: announced.set_result(at), open_engine)
    )
    address = await announced
    status = capfd.readouterr().err.split("http://")[1].split("/")[0]
    server = Running(status, address)
    assert await ask(address, 12) == 12
    found = await counted(server, 12)
    assert found["trtspec_requests_total|code=OK"] == 12 and found["trtspec_frontends"] == 2
    assert found["trtspec_generation_tokens_total"] == 72 and found["trtspec_spec_decode_num_drafts_total"] == 24
    killed, _ = children()
    os.kill(killed, signal.SIGKILL)
    while killed in children():
        await asyncio.sleep(0.01)
    found = await server.metrics()
    assert found["trtspec_requests_total|code=OK"] == 12
    answered = await ask(address, 8)
    found = await counted(server, 12 + answered)
    assert found["trtspec_requests_total|code=OK"] == 12 + answered
    assert found["trtspec_time_to_first_token_seconds_count"] == 12 + answered
    assert found["trtspec_generation_tokens_total"] == 6 * (12 + answered)
    # Both wrote to one file, and no line was torn.
    assert len((tmp_path / "log").read_text().splitlines()) == 12 + answered
    await executor.become(Health.FAILED)
    assert await task is False
    assert children() == []
