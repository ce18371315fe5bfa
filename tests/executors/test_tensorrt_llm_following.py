"""Ranks that follow: they take part with rank 0's own arguments, and end with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from builders.build import main
from tests.fakes.installed import mpi_world, tensorrt_llm_double
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.executors.tensorrt_llm.following import follow
from trtspec.ranks import Ranks
from trtspec.stop_signals import STOP_SIGNALS

RANKS = Ranks(1, 2)


@pytest.fixture(scope="module")
def double() -> Iterator[ModuleType]:
    with tensorrt_llm_double() as package:
        yield package


@pytest.fixture(scope="module")
def engine(double: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("following")
    tiny_llama(root / "target")
    argv = ["--backend", "tensorrt_llm", "--method", "none", "--tp", "2", "--target", str(root / "target")]
    assert main([*argv, "--output", str(root / "engine"), "--timing-cache", str(root / "timings")]) == 0
    return root / "engine"


@pytest.fixture(autouse=True)
def launched() -> Iterator[None]:
    """As the second process; what it leaves of signals to rank 0 is taken back."""
    signals = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    with mpi_world(2, rank=1):
        yield
    for number, handler in signals.items():
        signal.signal(number, handler)


Opened = list[tuple[Path, Mapping[str, Any], Any]]


@pytest.fixture
def opened(double: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """What was opened: the folder, the arguments, and the executor."""
    from trtspec.executors.tensorrt_llm import bindings

    found: Opened = []
    real = bindings.open_executor

    def watched(directory: Path, arguments: Mapping[str, Any]) -> Any:
        found.append((directory, arguments, real(directory, arguments)))
        return found[-1][2]

    monkeypatch.setattr(bindings, "open_executor", watched)
    return found


def test_a_rank_follows_with_the_options_of_the_server(engine: Path, opened: Opened) -> None:
    from tensorrt_llm.bindings import executor as trtllm

    assert follow(engine, EngineOptions(max_batch_size=3, prefix_sharing=False), RANKS) == 0
    ((directory, arguments, executor),) = opened
    assert directory == engine / TARGET and arguments["max_batch_size"] == 3
    assert arguments["kv_cache_config"]["enable_block_reuse"] is False
    assert arguments["parallel_config"]["communication_mode"] == "LEADER"
    assert executor._shut
    with pytest.raises(RuntimeError, match="only leader rank is expected to call"):
        executor.enqueue_request(trtllm.Request([1], 1))


def test_a_rank_that_was_made_the_leader_ends_all(
    engine: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorrt_llm.bindings import executor as trtllm

    monkeypatch.setattr(trtllm.Executor, "can_enqueue_requests", lambda _: True)
    with pytest.raises(SystemExit, match=r"MPI_Abort\(1\)"):
        follow(engine, EngineOptions(), RANKS)
    assert "launched to follow, and TensorRT-LLM made it the leader" in capsys.readouterr().err
    opened[0][2].shutdown()


def test_a_rank_with_another_version_ends_all(
    engine: Path, double: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(double, "__version__", "1.2.0")
    with pytest.raises(SystemExit, match=r"MPI_Abort\(1\)"):
        follow(engine, EngineOptions(), RANKS)
    assert "was built with TensorRT-LLM 1.2.1 and 1.2.0 is installed" in capsys.readouterr().err
