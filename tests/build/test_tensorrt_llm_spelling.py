"""Folders that transformers 5 wrote mean the same to transformers 4, which TensorRT-LLM has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.checkpoint import open_checkpoint
from builders.tensorrt_llm.spelling import in_old_spelling, old_spelling
from tests.models import tiny_llama

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("raw", "theta", "scaling"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5, **LLAMA3}}, 5e5, LLAMA3),
        ({"rope_parameters": {**LLAMA3}, "rope_theta": 7.0}, 7.0, LLAMA3),
    ],
)
def test_rotation_keeps_its_meaning(raw: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    found = old_spelling({"hidden_size": 8, "dtype": "bfloat16", **raw})
    assert found is not None
    assert (found["rope_theta"], found["rope_scaling"], found["torch_dtype"]) == (theta, scaling, "bfloat16")
    assert found["hidden_size"] == 8


@pytest.mark.parametrize("raw", [{}, {"rope_theta": 5.0}, {"rope_parameters": None, "rope_scaling": LLAMA3}])
def test_the_old_spelling_stays_as_it_is(raw: dict[str, Any]) -> None:
    assert old_spelling(raw) is None


def test_a_folder_is_rewritten_beside_itself_and_is_the_same_model(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "new", rope_scaling=dict(LLAMA3))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_theta": 123.0, **LLAMA3}
    config.pop("rope_theta", None)
    (folder / "config.json").write_text(json.dumps(config))
    old = in_old_spelling(folder, tmp_path / "old")
    raw = json.loads((old / "config.json").read_text())
    assert old == tmp_path / "old" and raw["rope_theta"] == 123.0
    del raw["rope_parameters"]  # as transformers 4 reads it
    (old / "config.json").write_text(json.dumps(raw))
    assert open_checkpoint(old).config == open_checkpoint(folder).config
    assert in_old_spelling(old, tmp_path / "again") == old and not (tmp_path / "again").exists()
