"""An engine that stands still is noticed, killed and started again; one that is idle or slow is let alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.engines import collect
from tests.executors import hanging_worker
from tests.executors.test_worker import ask
from tests.scripted import ScriptedProposer, hashed_law, scripted_engine
from trtspec.config import EngineOptions
from trtspec.errors import EngineLost
from trtspec.executors import open_executor, supervisor
from trtspec.executors.loop import EngineLoop
from trtspec.executors.messages import Close, Command, Report, Submit
from trtspec.types import Health, Request, StepOutput

STALL_SECONDS = 2


@pytest.mark.slow
async def test_a_pass_that_never_returns_ends_the_requests_and_the_process(
    engine_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv(hanging_worker.MARK, str(tmp_path / "hung"))
    monkeypatch.setattr(supervisor, "_MODULE", hanging_worker.__name__)
    executor = await open_executor(engine_folder, EngineOptions(kv_cache_mib=8, threads=1, stall_seconds=STALL_SECONDS))
    try:
        expected = (await collect(executor, ask(max_tokens=10))).ids
        beside = asyncio.create_task(collect(executor, ask("beside")))
        begun = time.monotonic()
        with pytest.raises(EngineLost, match="said nothing for 2 s over its work"):
            await collect(executor, Request("hangs", (hanging_worker.HANGS_AT, 9, 8), 5))
        assert STALL_SECONDS <= time.monotonic() - begun < STALL_SECONDS + 20
        with pytest.raises(EngineLost):
            await beside
        assert executor.health() is Health.RESTARTING
        with pytest.raises(EngineLost, match="restarting; try again"):
            await collect(executor, ask())
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert (await collect(executor, ask(max_tokens=10))).ids == expected
        assert "2 requests lost" in caplog.text
    finally:
        await executor.aclose()


def test_a_long_prompt_is_heard_of_pass_by_pass() -> None:
    """So that the bound need be longer than one pass only, and not than a prefill."""
    engine, runner = scripted_engine(hashed_law(), ScriptedProposer(lambda tokens, limit: ([], [])), pass_tokens=16)
    inbox: SimpleQueue[Command] = SimpleQueue()
    inbox.put(Submit(Request("long", tuple(range(16)) * 10, 1)))
    reports: list[Report] = []

    def publish(report: Report) -> None:
        reports.append(report)
        if any(isinstance(event, StepOutput) for event in report.events):
            inbox.put(Close())

    EngineLoop(engine, inbox, publish).run()
    assert len(runner.plans) == 10
    assert {report.stats.passes for report in reports} >= set(range(1, 11))
