"""Engines of plugins from flags to numbers, over a double of TensorRT: what it builds runs our kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import verifier
from plugins import runtime
from tests.fakes.nvinfer import tensorrt_without_libraries
from tests.fakes.nvinfer_engine import Plan, engines


@pytest.fixture(scope="module")
def trt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tensorrt_without_libraries(tmp_path_factory.mktemp("tensorrt")) as module:
        yield module


@pytest.fixture
def plans(trt: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    monkeypatch.setattr(runtime, "current_stream", lambda device: 77)
    with engines(trt) as built:
        yield built


def test_native(plans: list[Plan], tmp_path: Path) -> None:
    out = tmp_path / "v"
    flags = ["--kind", "native", "--vocabulary", "5", "--width", "5:6:9", "--output", str(out)]
    assert verifier.main(flags) == 0
    opened = runtime.open_verifier(out, "cpu")
    logits = torch.randn(3, 5, 7)
    tokens = torch.randint(0, 5, (3, 4)).int()
    parents = torch.tensor([[-1, 0, 1, 2]] * 3).int()
    counts = torch.tensor([4, 2, 0]).int()
    got = opened.run("trees", logits=logits, tokens=tokens, parents=parents, counts=counts)
    print(got)


def test_plugins(plans: list[Plan], tmp_path: Path) -> None:
    out = tmp_path / "v"
    flags = ["--kind", "plugins", "--vocabulary", "5", "--width", "5:6:9", "--output", str(out)]
    assert verifier.main(flags) == 0
    opened = runtime.open_verifier(out, "cpu")
