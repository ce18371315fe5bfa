"""A damaged engine folder is refused in our own words, whatever is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.folders import KINDS, rounds

SLOW_TO_READ = {"tokenizers": 20, "tokenizer_configs": 20}
SECONDS = 20.0


@pytest.mark.parametrize("kind", KINDS)
def test_some_damage(kind: str, tmp_path: Path) -> None:
    count = SLOW_TO_READ.get(kind, 60)
    assert rounds(KINDS[kind](tmp_path), 0, count) > count / 20


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage_in_bounded_memory(kind: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz.folders", kind, "1000", "1000000", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def test_a_panic_of_native_code_is_refused_as_other_damage_is(tmp_path: Path) -> None:
    assert rounds(KINDS["tokenizers"](tmp_path), 3853, 1) == 1, "the seed of a panic: it is no `Exception`"
