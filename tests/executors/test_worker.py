"""The engine's own process: crashes, restarts, and what happens to the requests in flight."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engines import collect
from tests.executors.conftest import children
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError, EngineFault, EngineFolderError, EngineLost, MissingDependency, TrtspecError
from trtspec.executors import open_executor, supervisor
from trtspec.executors.base import Executor
from trtspec.executors.child import Child
from trtspec.executors.messages import Open, Ready, Report, Submit
from trtspec.manifest import NAME as MANIFEST
from trtspec.speculation_limit import NO_LIMIT, SpeculationLimit
from trtspec.stop_signals import STOP_SIGNALS
from trtspec.types import Health, Method, Request, Started, StepOutput

OPTIONS = EngineOptions(kv_cache_mib=8, threads=1)


def ask(name: str = "a", max_tokens: int = 1500) -> Request:
    return Request(name, (40, 50, 60), max_tokens)


async def start_worker(engine_folder: Path) -> Child:
    return await Child.start("the engine", "trtspec.executors.worker", Open(engine_folder, OPTIONS))


async def crash_in_mid_stream(executor: Executor, request: Request) -> int:
    """Kill the worker once the request streams; returns how many tokens had come."""
    tokens = 0
    with pytest.raises(EngineLost, match="died"):
        async with aclosing(executor.generate(request)) as events:
            async for event in events:
                if isinstance(event, StepOutput):
                    tokens += len(event.token_ids)
                    for child in children():
                        os.kill(child, signal.SIGKILL)
    return tokens


async def test_a_killed_worker_ends_its_requests_and_is_started_again(engine_folder: Path) -> None:
    executor = await open_executor(engine_folder, OPTIONS)
    try:
        expected = (await collect(executor, ask(max_tokens=10))).ids
        assert await crash_in_mid_stream(executor, ask()) > 0
        assert executor.health() is Health.RESTARTING
        with pytest.raises(EngineLost, match="restarting; try again"):
            await collect(executor, ask())
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert (await collect(executor, ask(max_tokens=10))).ids == expected
    finally:
        await executor.aclose()


async def test_a_limit_of_drafts_outlives_the_worker_that_it_was_set_in(engine_folder: Path) -> None:
    executor = await open_executor(engine_folder, OPTIONS)
    try:
        await executor.limit_speculation(SpeculationLimit(0))
        await crash_in_mid_stream(executor, ask())
        with pytest.raises(EngineLost, match="restarting"):
            await executor.limit_speculation(SpeculationLimit(1))
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        first = await anext(executor.generate(replace(ask("b", 10), max_draft_tokens=4)))
        assert isinstance(first, Started) and first.max_draft_tokens == 0
        assert executor.speculation_limit() == SpeculationLimit(0) == (await executor.stats()).limit
    finally:
        await executor.aclose()


async def test_a_limit_that_is_not_in_force_when_the_worker_dies_is_none(engine_folder: Path) -> None:
    executor = await open_executor(engine_folder, OPTIONS)
    try:
        for child in children():
            os.kill(child, signal.SIGSTOP)
        limiting = asyncio.create_task(executor.limit_speculation(SpeculationLimit(0)))
        await asyncio.sleep(0)
        for child in children():
            os.kill(child, signal.SIGKILL)
        with pytest.raises(EngineLost, match="before the limit was in force"):
            await limiting
        assert executor.speculation_limit() == NO_LIMIT
    finally:
        await executor.aclose()


async def test_three_crashes_end_it_and_a_request_in_two_of_them_is_refused(engine_folder: Path) -> None:
    executor = await open_executor(engine_folder, OPTIONS)
    try:
        for name in ("first", "second"):
            await crash_in_mid_stream(executor, ask(name))
            assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        with pytest.raises(EngineFault, match="in two crashes"):
            await collect(executor, ask("third"))
        assert len((await collect(executor, ask("harmless", 5))).ids) == 5
        await crash_in_mid_stream(executor, Request("other", (9, 8), 1500))
        assert executor.health() is Health.FAILED
    finally:
        await executor.aclose()


async def test_a_folder_that_cannot_be_opened_says_why(engine_folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(engine_folder, tmp_path / "broken")
    weights = broken / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(EngineFolderError, match=r"weights.safetensors has \d+ bytes and the manifest says \d+"):
        await open_executor(broken, OPTIONS)
    (broken / MANIFEST).unlink()
    with pytest.raises(EngineFolderError, match="did not finish"):
        await open_executor(broken, OPTIONS)
    with pytest.raises(EngineFolderError, match="no such folder"):
        await open_executor(tmp_path / "nowhere", OPTIONS)


async def test_what_only_the_worker_can_see_is_raised_in_the_parent(engine_folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(engine_folder, tmp_path / "damaged")
    weights = damaged / "weights.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    with pytest.raises(EngineFolderError, match="cannot be read"):
        await open_executor(damaged, OPTIONS)
    with pytest.raises(EngineFolderError, match="content of weights.safetensors differs"):
        await open_executor(damaged, EngineOptions(kv_cache_mib=8, verify=True))
    deeper = {"method": "ngram", "num_speculative_tokens": 9}
    with pytest.raises(ConfigError, match="num_speculative_tokens is 9 .* at most 8"):
        await open_executor(engine_folder, EngineOptions(kv_cache_mib=8, speculative=deeper))


async def test_speculation_can_be_narrowed_or_switched_off_at_start(engine_folder: Path) -> None:
    narrow = {"method": "ngram", "num_speculative_tokens": 2}
    for config, method, depth in ((narrow, Method.NGRAM, 2), ({"method": "none"}, Method.NONE, 0)):
        options = EngineOptions(kv_cache_mib=8, threads=1, speculative=config)
        executor = await open_executor(engine_folder, options, in_process=True)
        try:
            assert (executor.info().method, executor.info().limits.max_draft_tokens) == (method, depth)
        finally:
            await executor.aclose()


async def test_a_method_that_was_not_built_is_refused(plain_folder: Path) -> None:
    options = EngineOptions(kv_cache_mib=8, speculative={"method": "ngram"})
    with pytest.raises(ConfigError, match="asks for ngram and the engine was built for none"):
        await open_executor(plain_folder, options)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in mid-stream"])
async def test_the_worker_follows_its_parent(
    engine_folder: Path, busy: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Closing the channel, as the parent's death does, ends the worker without anybody's kill and without noise."""
    child = await start_worker(engine_folder)
    await child.opened(Ready)
    if busy:
        child.channel.send(Submit(ask()))
        assert isinstance(await child.channel.receive(), Report)
    child.channel._writer.transport.abort()
    assert await asyncio.wait_for(child.process.wait(), 20) == 0
    assert "Traceback" not in capfd.readouterr().err


async def test_a_crash_while_starting_again_is_one_more_crash_and_not_the_end(
    engine_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement dies while it opens; the one after it serves."""
    executor = await open_executor(engine_folder, OPTIONS)
    start, deaths = Child.start, []

    async def start_and_die(*arguments: Any) -> Child:
        child = await start(*arguments)
        if not deaths:
            deaths.append(child.process.pid)
            child.process.kill()
        return child

    try:
        monkeypatch.setattr(Child, "start", start_and_die)
        await crash_in_mid_stream(executor, ask())
        assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert len(deaths) == 1
        assert len((await collect(executor, Request("b", (7,), 5))).ids) == 5
    finally:
        await executor.aclose()


async def test_closing_while_the_engine_is_being_restarted_leaves_nothing(engine_folder: Path) -> None:
    executor = await open_executor(engine_folder, OPTIONS)
    await crash_in_mid_stream(executor, ask())
    assert executor.health() is Health.RESTARTING
    await executor.aclose()
    assert executor.health() is Health.FAILED


async def test_an_engine_that_was_rebuilt_meanwhile_is_not_served_as_the_old_one(
    engine_folder: Path, plain_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(engine_folder, tmp_path / "engine")
    executor = await open_executor(folder, OPTIONS)
    try:
        shutil.copytree(plain_folder, folder, dirs_exist_ok=True)
        await crash_in_mid_stream(executor, ask())
        assert await executor.wait_for_change(Health.RESTARTING) is Health.FAILED
    finally:
        await executor.aclose()


async def test_a_rank_0_that_does_not_close_in_order_is_an_error(
    engine_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks would wait for ever; an error makes their launcher end them."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(supervisor, "_TOGETHER_SECONDS", 0.1)
    executor = await open_executor(engine_folder, EngineOptions(threads=1))
    os.kill(children()[0], signal.SIGSTOP)
    with pytest.raises(TrtspecError, match=r"rank 0 of 2, did not close in order \(signal 9\)"):
        await executor.aclose()


async def test_requests_that_only_wait_are_not_blamed_for_crashes(engine_folder: Path) -> None:
    """One place in the batch: the second request is queued in both crashes, and is served after them."""
    executor = await open_executor(engine_folder, EngineOptions(kv_cache_mib=8, threads=1, max_batch_size=1))
    waiting = Request("waits", (11, 12), 5)
    try:
        for name in ("first", "second"):
            queued = asyncio.create_task(collect(executor, waiting))
            await crash_in_mid_stream(executor, ask(name))
            with pytest.raises(EngineLost):
                await queued
            assert await executor.wait_for_change(Health.RESTARTING) is Health.SERVING
        assert len((await collect(executor, waiting)).ids) == 5
    finally:
        await executor.aclose()


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_to_the_group_does_not_hit_a_worker_that_is_loading(
    engine_folder: Path, number: signal.Signals
) -> None:
    """The worker ignores it as soon as Python runs our code; it is asked again and again while torch is loaded."""
    child = await start_worker(engine_folder)
    ready = asyncio.create_task(child.opened(Ready))
    while not ignores(child.process.pid, number):
        await asyncio.sleep(0.01)
    while not ready.done():
        child.process.send_signal(number)
        await asyncio.sleep(0.05)
    assert ready.result().info.backend == "embedded"
    await child.end()
    assert child.process.returncode == 0


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal, by what the kernel says of it."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigIgn"], 16) >> (number - 1) & 1)


async def test_a_worker_imports_nothing_from_the_current_folder(
    engine_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 always looks in the current folder first")
    (tmp_path / "queue.py").write_text("raise SystemExit('the current folder was searched')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    executor = await open_executor(engine_folder, OPTIONS)
    await executor.aclose()


async def test_without_pytorch_an_engine_says_what_to_install(
    engine_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.executors.find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(MissingDependency, match=r"needs torch, .* pip install 'trtspec\[embedded\]'"):
        await open_executor(engine_folder, OPTIONS)
