"""A tiny engine folder, and the promise that no process outlives a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.build import main
from tests.models import tiny_llama


def build(root: Path, method: str) -> Path:
    folder = tiny_llama(root / "model", seed=4, max_positions=2048)
    argv = ["--method", method, "--dtype", "float32", "--target", str(folder), "--output", str(root / "engine")]
    assert main([*argv, "--runner", "openvino"]) == 0
    return root / "engine"


@pytest.fixture(scope="session")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built for n-gram speculation."""
    return build(tmp_path_factory.mktemp("ngram"), "ngram")


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without speculation."""
    return build(tmp_path_factory.mktemp("none"), "none")


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    before = set(children())
    yield
    assert set(children()) == before, "a child process was left behind"


def children() -> list[int]:
    """Process ids of this process's children that are no zombies."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                result.append(int(entry.name))
    return result
