"""Ranks that follow: they take part with rank 0's own arguments, and end with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from builders.build import main
from tests.fakes.installed import tensorrt_llm_double
from tests.models import tiny_llama
from trtspec.config import EngineOptions
from trtspec.errors import EngineFolderError
from trtspec.executors.tensorrt_llm.engine_spec import TARGET
from trtspec.executors.tensorrt_llm.following import follow


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


def test_a_rank_follows_with_the_options_of_the_server(
    engine: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrt_llm.bindings import executor as trtllm

    monkeypatch.setattr(trtllm.Executor, "can_enqueue_requests", lambda _: False)
    assert follow(engine, EngineOptions(max_batch_size=3, prefix_sharing=False)) == 0
    ((directory, arguments, executor),) = opened
    assert directory == engine / TARGET and arguments["max_batch_size"] == 3
    assert arguments["kv_cache_config"]["enable_block_reuse"] is False
    assert arguments["parallel_config"]["communication_mode"] == "LEADER"
    with pytest.raises(RuntimeError, match="Shutdown called"):
        executor.enqueue_request(trtllm.Request([1], 1))


def test_a_rank_that_was_made_the_leader_serves_nobody(engine: Path, opened: Opened) -> None:
    with pytest.raises(EngineFolderError, match="launched to follow, and TensorRT-LLM made it the leader"):
        follow(engine, EngineOptions())
    opened[0][2].shutdown()


def test_another_version_follows_nobody(engine: Path, double: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double, "__version__", "1.2.0")
    with pytest.raises(EngineFolderError, match="was built with TensorRT-LLM 1.2.1 and 1.2.0 is installed"):
        follow(engine, EngineOptions())
