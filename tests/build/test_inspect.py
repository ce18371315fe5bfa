"""`python -m builders.inspect` prints what a manifest holds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builders.inspect import describe, main
from trtspec import manifest
from trtspec.decoding.acceptance import law
from trtspec.speculative import EXACT, TYPICAL, SpeculativeConfig
from trtspec.types import Method


def test_facts_artifacts_and_smoke_are_printed(shared_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(shared_engine), "--verify"]) == 0
    text = capsys.readouterr().out
    found = manifest.read(shared_engine)
    assert found.engine_id in text and '"num_speculative_tokens":8' in text and '"equal":true' in text
    for name, item in found.artifacts.items():
        assert any(line.split() == [str(item.bytes), item.sha256[:12], name] for line in text.splitlines())
    assert f"the hashes of all {len(found.artifacts)} artifacts are right" in text


def test_an_engine_that_is_not_lossless_says_so(shared_engine: Path) -> None:
    found = manifest.read(shared_engine)
    document = json.loads((shared_engine / manifest.NAME).read_text())
    assert document["output_law"] == "exact" and "NOT LOSSLESS" not in describe(found)
    for rule in (EXACT, TYPICAL):
        config = SpeculativeConfig(Method.MEDUSA, acceptance=rule)
        made = replace(found, speculative=config)
        assert made.output_law is law(config)
        assert ("typical: NOT LOSSLESS" in describe(made)) == (rule == TYPICAL)


def test_changed_content_of_the_same_size_is_found_by_verify(
    shared_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Path(shutil.copytree(shared_engine, tmp_path / "engine"))
    weights = engine / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert main([str(engine)]) == 0
    assert main([str(engine), "--verify"]) == 2
    assert "the content of weights.safetensors differs from its hash" in capsys.readouterr().err


def test_folder_that_is_no_engine_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "has no manifest.json" in capsys.readouterr().err
