"""Builds for TensorRT-LLM by processes of a launcher, and on GPUs that are too small. Real launches: tests/live."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue

import pytest

from builders.build import main
from builders.tensorrt_llm import launching
from builders.tensorrt_llm.engine_plan import EnginePlan
from builders.tensorrt_llm.launching import compile_together, follow
from builders.tensorrt_llm.rank_process import CompileError, environment, run_rank
from tests.fakes.installed import mpi_world
from trtspec.config import EngineOptions
from trtspec.errors import ConfigError
from trtspec.executors.tensorrt_llm.engine_spec import TARGET, EngineSpec, FolderSpec
from trtspec.executors.tensorrt_llm.pool import check_pool
from trtspec.executors.tensorrt_llm.probe import visible_gpus
from trtspec.executors.tensorrt_llm.world import World
from trtspec.ranks import Ranks


@pytest.fixture
def flags(shared_folder: Path, tmp_path: Path) -> list[str]:
    base = ["--backend", "tensorrt_llm", "--method", "none", "--target", str(shared_folder)]
    return [*base, "--output", str(tmp_path / "engine"), "--timing-cache", str(tmp_path / "timings")]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """GPUs of these sizes, in MiB, half of each free."""

    def plant(*sizes: int | str) -> None:
        rows = [
            f"GPU {i}, 9.0, {size}, {size // 2 if isinstance(size, int) else size}, 580" for i, size in enumerate(sizes)
        ]
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return plant


@pytest.mark.parametrize(
    ("more", "size", "message"),
    [
        (
            ["--tp", "2"],
            4,
            r"4 processes were launched and --tp 2 --pp 1 makes 2 ranks, .*`mpirun -n 2 python -m builders",
        ),
        ([], 2, r"--tp 1 --pp 1 makes 1 ranks, .*; build with `python -m builders.build"),
        (["--tp", "2", "--workers", "2"], 2, r"--workers is 2 and 2 processes were launched"),
        (["--flow", "pytorch"], 2, r"--flow pytorch compiles nothing"),
        (["--backend", "embedded"], 2, r"--backend embedded builds engines of one; build without a launcher"),
    ],
)
def test_launches_that_do_not_fit_are_refused(
    more: list[str],
    size: int,
    message: str,
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By rank 0 alone, and before MPI is joined, which may not even be there."""
    monkeypatch.setattr(launching, "join", lambda _: pytest.fail("MPI was joined"))
    for dry in (["--dry-run"], []):
        with mpi_world(size):
            assert main([*flags, *dry, *more]) == 2
        assert re.search(message, capsys.readouterr().err)
        with mpi_world(size, rank=1):
            assert main([*flags, *dry, *more]) == 0
        assert capsys.readouterr() == ("", "")


def test_a_plan_is_printed_once(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for rank in range(2):
        with mpi_world(2, rank):
            assert main([*flags, "--tp", "2", "--dry-run"]) == 0
        said.append(capsys.readouterr())
    assert "plan.world_size = 2" in said[0].out and said[1] == ("", "")


def test_a_wrong_command_line_is_told_once(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with mpi_world(2, rank=1), pytest.raises(SystemExit):
        main([*flags, "--no-such-flag"])
    assert capsys.readouterr() == ("", "")


def test_ranks_are_compiled_on_the_gpus_that_are_to_be_seen(
    smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    smi(80000, 80000)
    assert environment(Ranks(3, 4))["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment(Ranks(3, 4, on_node=0))["CUDA_VISIBLE_DEVICES"] == "0"
    assert "OMPI_COMM_WORLD_RANK" not in environment(Ranks(3, 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert environment(Ranks(1, 2))["CUDA_VISIBLE_DEVICES"] == "7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert environment(Ranks(1, 2))["CUDA_VISIBLE_DEVICES"] == "1"
    assert [gpu.name for gpu in visible_gpus()] == ["GPU 1"]


def test_a_rank_is_stopped_where_another_one_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec sleep 1000\n")
    endless.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(endless))
    run_rank(tmp_path / "job.json", Ranks(1, 2), stop=lambda: True)
    endless.write_text("#!/bin/sh\necho the last words\nexit 3\n")
    with pytest.raises(CompileError, match=r"rank 1 of 2 stopped with exit code 3:\n  the last words"):
        run_rank(tmp_path / "job.json", Ranks(1, 2), stop=lambda: False)


class Comm:
    """What `World` uses of MPI, between the threads of a test."""

    def __init__(self, rank: int, mail: dict[tuple[int, int], SimpleQueue[object]]) -> None:
        self._rank, self._mail = rank, mail

    def send(self, value: object, dest: int) -> None:
        self._mail[self._rank, dest].put(value)

    def iprobe(self, source: int) -> bool:
        return not self._mail[source, self._rank].empty()

    def recv(self, source: int) -> object:
        return self._mail[source, self._rank].get()


def worlds(size: int) -> list[World]:
    mail = {(a, b): SimpleQueue[object]() for a in range(size) for b in range(size)}
    return [World(Ranks(rank, size), Comm(rank, mail)) for rank in range(size)]


def compile_with(
    compiling: Callable[[int, Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[int]]:
    """Two ranks that follow, and what the first one's part came to; the exit codes of the others."""

    def stand_in(job: Path, ranks: Ranks, stop: Callable[[], bool]) -> None:
        assert threading.current_thread().name == f"rank{ranks.rank}"
        compiling(ranks.rank, stop)

    monkeypatch.setattr(launching, "run_rank", stand_in)
    monkeypatch.setattr(threading.current_thread(), "name", "rank0")
    leader, *others = worlds(3)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda world=world: codes.append(follow(world)), name=str(f"rank{i}"), daemon=True)
        for i, world in enumerate(others, 1)
    ]
    for thread in threads:
        thread.start()
    try:
        compile_together(Path("job"), leader)
        said = ""
    except (CompileError, KeyboardInterrupt) as error:
        said = repr(error)
    for rank in (1, 2):
        leader.send(7, rank)
    for thread in threads:
        thread.join(30)
    return said, codes


def wait_for_stop(stop: Callable[[], bool]) -> None:
    while not stop():
        time.sleep(0.01)


def test_each_process_compiles_its_own_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SimpleQueue[int]()
    assert compile_with(lambda rank, _: compiled.put(rank), monkeypatch) == ("", [7, 7])
    assert sorted(compiled.get() for _ in range(3)) == [0, 1, 2] and compiled.empty()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_stops_the_others(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleQueue[int]()

    def compiling(rank: int, stop: Callable[[], bool]) -> None:
        if rank == failing:
            raise CompileError(f"rank {rank} has no memory")
        wait_for_stop(stop)
        stopped.put(rank)

    said, codes = compile_with(compiling, monkeypatch)
    assert f"rank {failing} has no memory" in said and codes == [7, 7]
    assert sorted(stopped.get() for _ in range(2)) == [rank for rank in range(3) if rank != failing]


def test_an_interruption_of_rank_0_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiling(rank: int, stop: Callable[[], bool]) -> None:
        if rank == 0:
            raise KeyboardInterrupt
        wait_for_stop(stop)

    assert compile_with(compiling, monkeypatch) == ("KeyboardInterrupt()", [7, 7])


def test_a_folder_that_is_not_shared_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiling(rank: int, _: Callable[[], bool]) -> None:
        if rank == 2:
            raise FileNotFoundError("job.json")

    said, _ = compile_with(compiling, monkeypatch)
    assert "rank 2 of 3 cannot use the folder of rank 0: job.json; give an --output that all machines share" in said


GIB = 2**30


def big(monkeypatch: pytest.MonkeyPatch, *, weights: int, kv: int) -> None:
    """An engine of another size."""
    monkeypatch.setattr(EnginePlan, "weights_bytes", property(lambda _: weights))
    monkeypatch.setattr(EnginePlan, "kv_bytes", property(lambda _: kv))


def test_weights_that_a_gpu_cannot_hold_are_refused(
    flags: list[str], smi: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    big(monkeypatch, weights=3 * GIB, kv=1)
    smi(80000, 2048)
    told = "error: the weights of a rank take 3072 MiB and GPU 1 has 2048 MiB; give --tp more than 1"
    assert main(flags) == 2 and told in capsys.readouterr().err
    assert main([*flags, "--dry-run"]) == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(flags) == 2 and "weights" not in capsys.readouterr().err  # but TensorRT-LLM is missing


def test_a_full_batch_that_does_not_fit_is_a_warning(
    flags: list[str], smi: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    big(monkeypatch, weights=GIB, kv=2**20)
    smi(9215)
    main([*flags, "--max-seq-len", "512"])
    told = "warning: 16 requests of full length need 8192 MiB for keys and values beside 1024 MiB of weights, and GPU 0"
    assert told in capsys.readouterr().err
    for size in (9216, "[N/A]"):
        smi(size)
        main([*flags, "--max-seq-len", "512"])
        assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(("free", "refused"), [(99, True), (100, False)])
def test_pools_that_have_no_room_are_refused_before_an_engine_is_opened(
    free: int, refused: bool, smi: Callable[..., None], tmp_path: Path
) -> None:
    smi(2 * free)
    spec = EngineSpec("NONE", 4, 128, 512, 0, ("logits",), 1024)
    folder = FolderSpec("1.2.1", "engine", 2, 1, 100, 4, 267, {TARGET: spec})
    (tmp_path / TARGET).mkdir()
    with (tmp_path / TARGET / "rank1.engine").open("wb") as file:
        file.truncate(50 * 2**20)
    options = EngineOptions(kv_cache_mib=100)
    message = "is 100, of which this rank holds 50 MiB beside 50 MiB of what is compiled, and GPU 0 has 99 MiB free"
    with pytest.raises(ConfigError, match=message) if refused else nullcontext():
        check_pool(tmp_path, folder, [TARGET], options, Ranks(1, 2))
    check_pool(tmp_path, folder, [TARGET], EngineOptions(), Ranks(1, 2))
