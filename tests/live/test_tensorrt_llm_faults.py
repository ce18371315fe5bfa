"""What goes wrong inside TensorRT-LLM, as clients and operators see it. The double fails where its variables say."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from builders.build import main
from tests.fakes.installed import tensorrt_llm_double
from tests.live.servers import HealthWatch, LiveServer, Stream, refused, run
from tests.models import tiny_llama
from trtspec.client import Client, RequestFailed

LONG = {"max_tokens": 400, "ignore_eos": True}
ONLY = {"max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def engine(double: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("faults")
    tiny_llama(root / "target", seed=4, max_positions=1024)
    argv = ["--backend", "tensorrt_llm", "--method", "none", "--target", str(root / "target"), "--max-batch-size", "4"]
    assert main([*argv, "--output", str(root / "engine"), "--timing-cache", str(root / "timings")]) == 0
    return root / "engine"


@asynccontextmanager
async def served(engine: Path, log: Path, *flags: str) -> AsyncIterator[tuple[LiveServer, Client, HealthWatch]]:
    """A server, a client, and its health from SERVING on; nothing of it is left afterwards."""
    server = await asyncio.to_thread(LiveServer, engine, log, *flags)
    try:
        async with Client(server.address) as client, grpc.aio.insecure_channel(server.address) as channel:
            watch = HealthWatch(channel)
            assert await watch.next() == "SERVING"
            yield server, client, watch
            watch.cancel()
        server.signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0
    finally:
        server.close()


def is_lost(error: RequestFailed, stream: Stream) -> None:
    """The request ended with the engine, and what it cost until then is told."""
    assert error.status is grpc.StatusCode.UNAVAILABLE and error.reason == "ENGINE_LOST"
    assert error.partial is not None and error.partial.completion_tokens == len(stream.ids) > 0


async def test_a_killed_worker_ends_its_requests_at_once_and_another_one_serves(engine: Path, tmp_path: Path) -> None:
    async with served(engine, tmp_path / "log") as (server, client, watch):
        before = await client.complete("the answer", **ONLY)
        streams = [await Stream(client, f"prompt {i}", **LONG).begin(2) for i in range(3)]
        killed = time.monotonic()
        server.kill_worker()
        for stream in streams:
            is_lost(await stream.failure(), stream)
        assert time.monotonic() - killed < 2
        assert [await watch.next(), await watch.next()] == ["NOT_SERVING", "SERVING"]
        assert (await client.complete("the answer", **ONLY)).token_ids == before.token_ids
        assert "3 requests lost" in server.log


@pytest.mark.parametrize(
    ("fault", "flags", "told"),
    [
        ("TRTLLM_DOUBLE_FORWARD_ERROR_AT", (), "a step of the engine failed"),
        pytest.param(
            "TRTLLM_DOUBLE_HANG_AT",
            ("--stall-seconds", "1"),
            "no response came for 1 s",
            marks=pytest.mark.slow,
        ),
        pytest.param("TRTLLM_DOUBLE_ABORT_AT", (), "process died (signal 6)", marks=pytest.mark.slow),
    ],
)
async def test_an_engine_that_cannot_go_on_ends_its_requests_and_is_restarted(
    fault: str, flags: tuple[str, ...], told: str, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fault, "60")
    async with served(engine, tmp_path / "log", *flags) as (server, client, watch):
        streams = await asyncio.gather(*(Stream(client, f"prompt {i}", **LONG).begin(2) for i in range(2)))
        for stream in streams:
            is_lost(await stream.failure(), stream)
        assert [await watch.next(), await watch.next()] == ["NOT_SERVING", "SERVING"]
        assert len((await client.complete("the answer", **ONLY)).token_ids) == 8
        assert told in server.log and "2 requests lost" in server.log and "Traceback" not in server.log


async def test_an_error_of_one_request_is_its_own(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_ERROR_EVERY", "4")
    async with served(engine, tmp_path / "log") as (server, client, _):
        answered = await asyncio.gather(
            *(client.complete(f"prompt {i}", **ONLY) for i in range(12)), return_exceptions=True
        )
        failed = [item for item in answered if isinstance(item, RequestFailed)]
        assert len(failed) == 3 and {item.status for item in failed} == {grpc.StatusCode.INVALID_ARGUMENT}
        assert sum(not isinstance(item, BaseException) for item in answered) == 9
        assert server.log == ""


async def test_a_prompt_that_is_too_long_is_refused_before_the_runtime_shortens_it(
    engine: Path, tmp_path: Path
) -> None:
    async with served(engine, tmp_path / "log") as (_, client, _):
        error = await refused(client, [5] * 1024, max_tokens=1)
        assert error.status is grpc.StatusCode.INVALID_ARGUMENT
        whole = await client.complete([5] * 1000, max_tokens=24, ignore_eos=True)
        assert len(whole.token_ids) == 24


def test_memory_that_is_too_small_is_told_when_the_server_starts(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_DOUBLE_OOM", "1")
    ended = run("serve", engine, "--port", "0")
    assert ended.code == 2 and "out of memory" in ended.err and "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--threads", "2"), "--threads is for embedded engines"),
        (("--speculative-config", '{"method": "ngram"}'), "the engine was built for none"),
    ],
)
def test_options_that_it_cannot_follow_are_refused(engine: Path, flags: tuple[str, ...], message: str) -> None:
    ended = run("serve", engine, "--port", "0", *flags)
    assert ended.code == 2 and message in ended.err and "Traceback" not in ended.err


def test_two_ranks_want_one_process_each(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    ended = run("serve", engine, "--port", "0")
    assert ended.code == 2 and "has 1 ranks and 2 were launched" in ended.err
