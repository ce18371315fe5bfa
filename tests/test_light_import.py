"""What a process loads: a client is light, and the service process stays free of PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import tiny_tokenizer


def loaded_by(statement: str, packages: set[str]) -> set[str]:
    """Which of the packages a fresh Python has loaded after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted({packages!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("trtspec", {"torch", "grpc", "transformers", "numpy", "google.protobuf"}),
        ("trtspec.manifest", {"torch", "grpc", "transformers", "numpy"}),
        ("trtspec.executors", {"torch", "grpc", "transformers"}),
        ("trtspec.client", {"torch", "transformers"}),
        ("trtspec.service.server", {"torch", "opentelemetry"}),
        ("trtspec.cli.main", {"torch", "transformers"}),
        ("builders", {"torch", "transformers"}),
    ],
)
def test_importing_loads_nothing_heavy(module: str, unwanted: set[str]) -> None:
    assert loaded_by(f"import {module}", unwanted) == set()


def test_tokenizing_in_the_service_process_loads_no_torch(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    statement = f"""
from pathlib import Path
from trtspec.service.text import ChatPrompt, Tokenizer
tokenizer = Tokenizer.load(Path({str(tmp_path)!r}))
tokenizer.encode("Hi")
tokenizer.render(ChatPrompt(messages=({{"role": "user", "content": "Hi"}},)))
"""
    assert loaded_by(statement, {"torch"}) == set()


def test_a_loaded_package_is_seen() -> None:
    assert loaded_by("import json", {"json", "torch"}) == {"json"}
