"""Engines of two ranks under a real `mpirun`, over the double: rank 0 computes, rank 1 begins and ends with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.build import main
from tests.fakes.installed import tensorrt_llm_double
from tests.live.launches import Launch, missing
from tests.live.servers import Stream, run
from tests.models import tiny_llama
from trtspec import manifest
from trtspec.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
ONLY = {"max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    with tensorrt_llm_double():
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("launches")
    tiny_llama(root / "target", seed=4, max_positions=1024)
    return root


def build(root: Path, output: Path) -> list[str]:
    argv = ["--backend", "tensorrt_llm", "--method", "none", "--target", str(root / "target"), "--tp", "2"]
    return [*argv, "--max-batch-size", "4", "--output", str(output), "--timing-cache", str(root / "timings")]


@contextmanager
def launched(folder: Path, *arguments: str | Path, **environment: str) -> Iterator[Launch]:
    launch = Launch(folder, *arguments, **environment)
    try:
        yield launch
    finally:
        launch.close()


@pytest.fixture(scope="module")
def engine(double: None, root: Path) -> Path:
    output = root / "engine"
    with launched(root, "builders.build", *build(root, output)) as launch:
        assert launch.wait() == 0, launch.err
        assert launch.out.count("plan.backend") == launch.out.count("serve it") == 1
    return output


def test_ranks_that_compile_one_each_make_the_engine_that_one_process_makes(engine: Path, root: Path) -> None:
    assert main([*build(root, root / "alone"), "--workers", "2"]) == 0
    alone, together = manifest.read(root / "alone"), manifest.read(engine)
    assert together.target_sha256 == alone.target_sha256  # a double's engine holds paths, so that no two are equal
    assert set(together.artifacts) == set(alone.artifacts) >= {"target/rank0.engine", "target/rank1.engine"}
    assert not list(root.glob("*.building"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_compile_ends_all_and_leaves_nothing(rank: int, root: Path, tmp_path: Path) -> None:
    planted = {"TRTLLM_DOUBLE_BUILD_ERROR": "1", "TRTLLM_DOUBLE_FAULTY_RANK": str(rank)}
    with launched(tmp_path, "builders.build", *build(root, tmp_path / "engine"), **planted) as launch:
        assert launch.wait() == 1
        assert launch.err.count(f"rank {rank} of 2 stopped with exit code 1") == 1
        assert "Engine building failed" in launch.err and "Traceback" not in launch.err
    assert not list(tmp_path.glob("engine*"))


def test_builds_that_are_done_or_refused_end_in_every_rank(engine: Path, root: Path, tmp_path: Path) -> None:
    with launched(tmp_path, "builders.build", *build(root, engine)) as launch:
        assert launch.wait() == 0 and launch.out.count("up to date") == 1
    with launched(tmp_path, "builders.build", *build(root, engine), "--tp", "1") as launch:
        assert launch.wait() == 2 and launch.err.count("error: 2 processes were launched and --tp 1 --pp 1") == 1


async def test_a_launcher_that_is_told_to_stop_lets_requests_finish(engine: Path, tmp_path: Path) -> None:
    slow = {"TRTLLM_DOUBLE_PASS_SECONDS": "0.02"}
    with launched(tmp_path, "trtspec", "serve", engine, "--port", "0", **slow) as launch:
        async with Client(launch.address()) as client:
            stream = await Stream(client, "the answer", max_tokens=60, ignore_eos=True).begin(2)
            launch.signal(signal.SIGUSR1)
            await stream.end()
            assert len(stream.ids) == 60
        assert launch.wait() == 0 and launch.err == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_open_ends_all(rank: int, engine: Path, tmp_path: Path) -> None:
    planted = {"TRTLLM_DOUBLE_OOM": "1", "TRTLLM_DOUBLE_FAULTY_RANK": str(rank)}
    with launched(tmp_path, "trtspec", "serve", engine, "--port", "0", **planted) as launch:
        assert launch.wait() > 0
        assert "out of memory" in launch.err and "Traceback" not in launch.err
        assert ("rank 1 of 2: error" in launch.err) is (rank == 1)


@pytest.mark.parametrize(("module", "rank"), [("trtspec.executors.worker", 0), ("trtspec", 1)])
async def test_a_rank_that_is_killed_ends_all(module: str, rank: int, engine: Path, tmp_path: Path) -> None:
    with launched(tmp_path, "trtspec", "serve", engine, "--port", "0") as launch:
        async with Client(launch.address()) as client:
            assert len((await client.complete("the answer", **ONLY)).token_ids) == 8
        [process] = launch.processes(rank, module)
        os.kill(process, signal.SIGKILL)
        assert launch.wait() > 0


def test_a_rank_0_that_is_stopped_while_it_opens_ends_all(engine: Path, tmp_path: Path) -> None:
    with launched(tmp_path, "trtspec", "serve", engine, "--port", "0") as launch:
        while not (workers := list(launch.processes(0, "trtspec.executors.worker"))):
            assert launch.out == ""
        [leader] = [process for process in launch.processes(0, "trtspec") if process not in workers]
        os.kill(leader, signal.SIGTERM)
        assert launch.wait() > 0 and launch.out == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_the_launcher_of_another_mpi_is_refused(rank: int, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a launcher's processes are each alone for MPI: each would lead."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    ended = run("serve", engine, "--port", "0")
    assert ended.code == 2 and "Traceback" not in ended.err
    assert f"made this process rank {rank} of 2 and for MPI it is rank 0 of 1" in ended.err
