"""Headers that promise far more than there is, or numbers that overflow: refused at once, in little memory."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from builders.checkpoint import open_checkpoint
from builders.safetensors_file import read_header
from tests.checkpoint_files import split
from tests.models import tiny_llama
from trtspec.errors import CheckpointError

SECONDS = 20.0
"""Far more than a refusal takes, and far less than 2**40 of anything."""
U64 = 2**64 - 1
UINT32, STRING, ARRAY = 4, 8, 9
"""Types of values in a GGUF file."""


def gguf(tensors: int, keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest + b"\0" * 64


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def key(kind: int, value: bytes) -> bytes:
    return text(b"general.name") + struct.pack("<I", kind) + value


def tensor(*dimensions: int, kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text(b"token_embd.weight") + sizes + struct.pack("<IQ", kind, offset)


HOSTILE_GGUF = {
    "tensors without end": gguf(2**40, 0),
    "keys without end": gguf(0, 2**40),
    "the largest counts": gguf(U64, U64),
    "a name without end": gguf(0, 1, text(b"x", U64)),
    "a text without end": gguf(0, 1, key(STRING, struct.pack("<Q", 2**62))),
    "an array without end": gguf(0, 1, key(ARRAY, struct.pack("<IQ", UINT32, 2**61))),
    "arrays in arrays": gguf(0, 1, key(ARRAY, struct.pack("<IQ", ARRAY, 1) * 5000 + struct.pack("<IQ", UINT32, 0))),
    "a kind that is not": gguf(0, 1, key(77, b"")),
    "sizes that overflow": gguf(1, 0, tensor(2**33, 2**33)),
    "sizes that overflow to little": gguf(1, 0, tensor(2**63, 2)),
    "dimensions without end": gguf(1, 0, text(b"x") + struct.pack("<I", 2**32 - 1)),
    "a place beyond all": gguf(1, 0, tensor(32, offset=U64)),
    "a tensor of no kind": gguf(1, 0, tensor(32, kind=2**31)),
    "another version": gguf(0, 0, version=2**31),
}


@pytest.mark.parametrize("name", HOSTILE_GGUF)
def test_a_gguf_file_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(HOSTILE_GGUF[name])
    begin = time.monotonic()
    with pytest.raises(CheckpointError, match="a.gguf"):
        open_checkpoint(path)
    assert time.monotonic() - begin < SECONDS


def entry(shape: object, offsets: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE_SAFETENSORS = {
    "sizes that overflow to little": json.dumps({"x": entry([2**62, 4], [0, 0])}),
    "sizes that overflow": json.dumps({"x": entry([2**40, 2**40], [0, 2**82])}),
    "places beyond all": json.dumps({"x": entry([2**62], [0, 2**64])}),
    "a place before": json.dumps({"x": entry([1], [-4, 0])}),
    "an end before the begin": json.dumps({"x": entry([1], [4, 0])}),
    "one on top of the other": json.dumps({"x": entry([1], [0, 4]), "y": entry([1], [0, 4])}),
    "a hole": json.dumps({"x": entry([1], [4, 8])}),
    "numbers that are none": json.dumps({"x": entry([float("inf")], [0, float("nan")])}),
    "numbers of many digits": '{"x": {"dtype": "F32", "shape": [' + "9" * 5000 + '], "data_offsets": [0, 4]}}',
    "true for one": json.dumps({"x": entry([True], [0, 4])}),
    "lists in lists": "[" * 100_000,
    "objects in objects": '{"a":' * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE_SAFETENSORS)
def test_a_safetensors_header_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    header = HOSTILE_SAFETENSORS[name].encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(CheckpointError, match="x.safetensors"):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("length", [0, 1, 100_000_001, 2**31, 2**63, U64])
def test_a_length_that_lies_is_refused(length: int, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}" * 8)
    with pytest.raises(CheckpointError, match="x.safetensors"):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/hostname", "a/../../x", "", ".", "a\0b", "x" * 5000])
def test_an_index_cannot_name_files_elsewhere(shard: str, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", layers=1)
    header, _ = split(model / "model.safetensors")
    (model / "model.safetensors").rename(tmp_path / "x.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys((name for name in header if name != "__metadata__"), shard)}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="index.json"):
        open_checkpoint(model)
