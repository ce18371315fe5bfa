"""What tests of training learn from: conversations about nothing, with answers that can be learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import build, train
from builders.training import state_file
from tests.models import tiny_llama
from trtspec.types import Method

CONVERSATIONS = 12
QUICK = ("--draft-vocabulary", "60", "--tokens-per-step", "200", "--steps", "8", "--learning-rate", "0.005")
METHODS = [method.value for method in (Method.EAGLE, Method.EAGLE3, Method.MTP, Method.MEDUSA, Method.DRAFT_MODEL)]


def engine(directory: Path) -> Path:
    """A tiny target with layers enough to choose from, as an engine folder."""
    model = tiny_llama(directory / "model", layers=4, hidden=32, heads=2, kv_heads=1, tie=False)
    argv = ["--method", "none", "--runner", "eager", "--target", str(model), "--output", str(directory / "engine")]
    assert build.main(argv) == 0
    return directory / "engine"


def write_data(path: Path, count: int = CONVERSATIONS) -> Path:
    lines = [{"prompt": f"count to {i}", "answer": " ".join(map(str, range(i, i + 12)))} for i in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(method: str, target: Path, root: Path, *argv: str, data: Path | None = None) -> int:
    """Train into `root/METHOD` with everything beside it."""
    source = data or write_data(root / "data.jsonl")
    command = ["--method", method, "--target", str(target), "--data", str(source), "--work", str(root / "work")]
    return train.main([*command, "--output", str(root / method), *QUICK, *argv])


def saved(root: Path) -> dict[str, Any]:
    """The state of the one run that there is."""
    (path,) = (root / "work").glob("*/*/training.safetensors")
    groups, plain = state_file.read(path)
    return {**groups, **plain}
