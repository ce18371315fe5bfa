"""Checkpoints and builds that several tests read; a test that changes one copies it first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.build import main
from tests.models import tiny_llama


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture
def folder(shared_folder: Path, tmp_path: Path) -> Path:
    """A private copy of the tied single-file checkpoint."""
    return Path(shutil.copytree(shared_folder, tmp_path / "tiny"))


@pytest.fixture(scope="session")
def shared_engine(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("engine") / "tiny-ngram"
    assert main(["--method", "ngram", "--target", str(shared_folder), "--output", str(output)]) == 0
    return output


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a build that must be refused; returns the one message it prints."""

    def run(*argv: object, code: int = 2) -> str:
        assert main([str(item) for item in argv]) == code
        error = capsys.readouterr().err
        assert error.startswith("error: ") and "Traceback" not in error
        return error

    return run
