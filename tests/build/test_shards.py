"""Weights in many files: each tensor is in one shard, and in the one that the index names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from builders.checkpoint import open_checkpoint
from tests.models import tiny_llama
from trtspec.errors import CheckpointError


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, shards=3)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"names {shard.name}, which is not in the folder"):
        open_checkpoint(folder)


def test_tensor_that_is_in_another_shard_than_the_index_says_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, shards=3)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = shards[0]
    path.write_text(json.dumps(index))
    assert len(shards) >= 3
    with pytest.raises(
        CheckpointError, match=rf"says that tensor model\.norm\.weight is in {shards[0]}, which lacks it"
    ):
        open_checkpoint(folder)


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(shard for shard in sorted(set(index.values())) if shard != index["model.norm.weight"])
    save_file(load_file(folder / other) | {"model.norm.weight": torch.zeros(64)}, folder / other)
    with pytest.raises(CheckpointError, match=r"tensor model\.norm\.weight is both in model-0000") as refusal:
        open_checkpoint(folder)
    assert other in str(refusal.value) and index["model.norm.weight"] in str(refusal.value)


def test_index_cannot_point_outside_the_folder(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    (tmp_path / "other.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="which is not in the folder"):
        open_checkpoint(folder)
