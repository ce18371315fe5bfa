"""Whether the files of a checkpoint are the ones an engine was built from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders.inputs import fingerprint, input_files, unchanged


@pytest.fixture
def target(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.model", "chat_template.jinja", "pytorch_model.bin"):
        (tmp_path / name).write_text(name)
    return tmp_path


def recorded(target: Path) -> list[dict[str, object]]:
    return [fingerprint(name, path).to_dict() for name, path in input_files(target).items()]


def test_inputs_are_the_files_a_build_reads(target: Path) -> None:
    assert set(input_files(target)) == {"config.json", "model.safetensors", "tokenizer.model", "chat_template.jinja"}
    assert set(input_files(target / "config.json")) == {"config.json"}


def test_untouched_and_merely_touched_files_are_unchanged(target: Path) -> None:
    record = recorded(target)
    assert unchanged(record, input_files(target))
    os.utime(target / "config.json", ns=(1, 1))
    assert unchanged(record, input_files(target))


def test_content_size_and_set_of_files_are_watched(target: Path) -> None:
    record = recorded(target)
    path = target / "config.json"
    path.write_text("config.jsoN")
    os.utime(path, ns=(1, 1))
    assert not unchanged(record, input_files(target))
    path.write_text("config.json and more")
    assert not unchanged(record, input_files(target))
    path.unlink()
    assert not unchanged(record, input_files(target))
    path.write_text("config.json")
    assert unchanged(record, input_files(target))
    (target / "generation_config.json").write_text("{}")
    assert not unchanged(record, input_files(target))
