"""The manifest: identity, atomic writing, and every kind of damage told in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import manifest as manifests
from trtspec.errors import EngineFolderError
from trtspec.manifest import NAME, DrafterRecord, Manifest, hash_file
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "weights").write_bytes(b"12345")
    manifests.write(_manifest(tmp_path), tmp_path)
    return tmp_path


def _manifest(directory: Path) -> Manifest:
    return Manifest(
        model="m",
        backend="embedded",
        runner="eager",
        architecture="LlamaForCausalLM",
        dtype="float32",
        quantization="none",
        max_context_tokens=64,
        vocabulary_size=10,
        speculative=SpeculativeConfig(Method.NGRAM),
        artifacts={"weights": hash_file(directory / "weights")},
        tokenizer_sha256="00",
        target_sha256="00",
        build={"argv": ["--x"]},
    )


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((directory / NAME).read_text())
    change(document)
    (directory / NAME).write_text(json.dumps(document))


def test_what_was_written_is_read(engine: Path) -> None:
    assert manifests.read(engine, verify=True) == _manifest(engine)
    assert [path.name for path in engine.iterdir() if "partial" in path.name] == []


def test_identity_is_of_what_decides_tokens(engine: Path) -> None:
    one = _manifest(engine)
    same = replace(one, build={"argv": ["--y"]}, versions={"torch": "3"}, model="other", smoke={"tokens": 1})
    assert one.engine_id == same.engine_id
    for other in (
        replace(one, dtype="bfloat16"),
        replace(one, speculative=SpeculativeConfig(Method.NGRAM, num_speculative_tokens=4)),
        replace(one, artifacts={"weights": manifests.Artifact(5, "11")}),
        replace(one, tokenizer_sha256="11"),
        replace(one, target_sha256="11"),
        replace(one, drafter=DrafterRecord("eagle", None, "nothing")),
    ):
        assert other.engine_id != one.engine_id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.pop("engine_id"), "is damaged"),
        (lambda document: document.update(artifacts=[]), "is damaged"),
        (lambda document: document.update(artifacts={"weights": {"bytes": 5}}), "is damaged"),
        (lambda document: document.update(speculative={"method": "x"}), "is damaged"),
        (lambda document: document.update(drafter={"format": "eagle"}), "is damaged"),
        (lambda document: document.update(target_sha256="11"), "was changed by hand"),
        (lambda document: document.update(format=99), "format 99 is not 4"),
        (lambda document: document.update(dtype="bfloat16"), "was changed by hand"),
        (lambda document: document.update(max_context_tokens=128), "was changed by hand"),
    ],
)
def test_damage_is_told_in_one_line(engine: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    edit(engine, change)
    with pytest.raises(EngineFolderError, match=message):
        manifests.read(engine)


def test_a_drafter_is_read_as_it_was_written(engine: Path) -> None:
    one = replace(_manifest(engine), drafter=DrafterRecord("native", "ab", "identity"))
    manifests.write(one, engine)
    assert manifests.read(engine) == one and one.drafter is not None and not one.drafter.unverified
    assert DrafterRecord("native", "ab", manifests.UNVERIFIED).unverified


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00"])
def test_a_half_written_manifest_is_damage(engine: Path, text: str) -> None:
    (engine / NAME).write_text(text)
    with pytest.raises(EngineFolderError, match="is damaged"):
        manifests.read(engine)


def test_missing_changed_and_swapped_files(engine: Path) -> None:
    (engine / "weights").write_bytes(b"54321")
    manifests.read(engine)
    with pytest.raises(EngineFolderError, match="content of weights differs"):
        manifests.read(engine, verify=True)
    (engine / "weights").write_bytes(b"1234")
    with pytest.raises(EngineFolderError, match="weights has 4 bytes and the manifest says 5"):
        manifests.read(engine)
    (engine / "weights").unlink()
    with pytest.raises(EngineFolderError, match="weights is missing"):
        manifests.read(engine)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../outside"])
def test_a_manifest_cannot_point_outside_its_folder(engine: Path, name: str) -> None:
    outside = replace(_manifest(engine), artifacts={name: manifests.Artifact(5, "00")})
    manifests.write(outside, engine)
    with pytest.raises(EngineFolderError, match="outside the engine folder"):
        manifests.read(engine)


def with_artifact(engine: Path, name: str, size: int = 5) -> None:
    manifests.write(replace(_manifest(engine), artifacts={name: manifests.Artifact(size, "00")}), engine)


@pytest.mark.parametrize("link", ["file", "folder", "both ways"])
def test_no_link_leads_out_of_the_folder(link: str, tmp_path: Path) -> None:
    engine, outside = tmp_path / "engine", tmp_path / "outside"
    engine.mkdir(), outside.mkdir()
    (engine / "weights").write_bytes(b"12345")
    (outside / "secret").write_bytes(b"12345")
    name = "there/secret" if link == "folder" else "there"
    target = {"file": outside / "secret", "folder": outside, "both ways": engine / "there"}[link]
    (engine / "there").symlink_to(target)
    with_artifact(engine, name)
    with pytest.raises(EngineFolderError, match="outside the engine folder"):
        manifests.read(engine)


def test_links_within_the_folder_and_to_it_are_fine(engine: Path) -> None:
    (engine / "again").symlink_to("weights")
    with_artifact(engine, "again")
    other = engine.with_name("link")
    other.symlink_to(engine)
    assert manifests.read(other).artifacts["again"].bytes == 5


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "weights/x", "."])
def test_a_name_that_no_file_has_is_missing_or_refused(name: str, engine: Path) -> None:
    with_artifact(engine, name)
    with pytest.raises(EngineFolderError, match="is missing|outside the engine folder"):
        manifests.read(engine)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_context_tokens": 0},
        {"max_context_tokens": 2**31},
        {"max_context_tokens": "64"},
        {"max_context_tokens": True},
        {"vocabulary_size": -1},
        {"vocabulary_size": 1e300},
        {"model": 5},
        {"model": "\ud800"},
        {"model": "a\0b"},
        {"dtype": None},
        {"smoke": []},
        {"artifacts": {"weights": {"bytes": "5", "sha256": "00"}}},
        {"artifacts": {"weights": {"bytes": 5, "sha256": 7}}},
        {"drafter": {"format": 1, "target_sha256": None, "matched_by": "x"}},
        {"drafter": []},
        {"speculative": []},
    ],
)
def test_values_that_no_build_writes_are_damage_whatever_the_identity(wrong: dict[str, Any], engine: Path) -> None:
    edit(engine, lambda document: document.update(wrong))
    with pytest.raises(EngineFolderError, match="is damaged"):
        manifests.read(engine)


def test_a_manifest_of_any_size_or_depth_is_refused_in_bounds(engine: Path) -> None:
    (engine / NAME).write_text("[" * 200_000)
    with pytest.raises(EngineFolderError, match="is damaged"):
        manifests.read(engine)
    with (engine / NAME).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(EngineFolderError, match="has more than 67108864 bytes"):
        manifests.read(engine)
