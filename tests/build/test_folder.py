"""The engine folder on disk: nothing foreign is replaced, nothing half-written is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builders import folder
from plugins import verifier_folder
from plugins.verifier_folder import VerifierRecord
from trtspec import manifest
from trtspec.errors import ConfigError, EngineFolderError
from trtspec.manifest import Manifest
from trtspec.speculative import SpeculativeConfig
from trtspec.types import Method


def tiny_manifest(directory: Path) -> Manifest:
    return Manifest(
        model="m",
        backend="embedded",
        runner="eager",
        architecture="LlamaForCausalLM",
        dtype="float32",
        quantization="none",
        max_context_tokens=8,
        vocabulary_size=8,
        speculative=SpeculativeConfig(Method.NONE),
        artifacts=folder.list_artifacts(directory),
        tokenizer_sha256="0",
        target_sha256="0",
    )


def build(output: Path, content: str) -> None:
    with folder.staging(output) as directory:
        (directory / "weights").write_text(content)
        manifest.write(tiny_manifest(directory), directory)
        folder.publish(directory, output)


def test_new_engine_replaces_the_old_one_whole(tmp_path: Path) -> None:
    output = tmp_path / "engine"
    build(output, "old")
    build(output, "new")
    assert (output / "weights").read_text() == "new"
    assert manifest.read(output, verify=True).artifacts.keys() == {"weights"}
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_failed_build_leaves_nothing_and_keeps_the_old_engine(tmp_path: Path) -> None:
    output = tmp_path / "engine"
    build(output, "old")
    with pytest.raises(RuntimeError), folder.staging(output) as directory:
        (directory / "weights").write_text("new")
        raise RuntimeError
    assert (output / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_killed_build_is_refused_by_a_server_and_cleared_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / "engine.building"
    left.mkdir()
    (left / folder.MARK).touch()
    (left / "weights").write_text("half")
    (left / "tokenizer").mkdir()
    with pytest.raises(EngineFolderError, match="its build did not finish"):
        manifest.read(left)
    folder.check_output(tmp_path / "engine")
    with folder.staging(tmp_path / "engine") as directory:
        assert directory == left
        assert [path.name for path in directory.iterdir()] == [folder.MARK]


def test_two_builds_of_one_output_do_not_mix(tmp_path: Path) -> None:
    output = tmp_path / "engine"
    with folder.staging(output) as directory:
        with pytest.raises(ConfigError, match="another build is writing"), folder.staging(output):
            pass
        assert (directory / folder.MARK).is_file()


@pytest.mark.parametrize("name", ["engine", "engine.building", "engine.replaced"])
def test_foreign_folder_is_never_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=f"{name} exists and is no engine folder"):
        folder.check_output(tmp_path / "engine")


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("a file")
    with pytest.raises(ConfigError, match="is no engine folder"):
        folder.check_output(tmp_path / "engine")


def test_empty_folder_and_an_engine_without_its_mark_are_free_to_use(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    folder.check_output(tmp_path / "empty")
    build(tmp_path / "engine", "weights")
    (tmp_path / "engine" / folder.MARK).unlink()
    folder.check_output(tmp_path / "engine")
    build(tmp_path / "empty", "weights")
    assert manifest.read(tmp_path / "empty")


def verify(output: Path) -> None:
    with folder.staging(output) as directory:
        record = VerifierRecord("native", "onnx", "1", (), None, {}, 8, "float32", {}, {})
        verifier_folder.write(record, directory)
        folder.publish(directory, output)


@pytest.mark.parametrize("name", ["engine", "engine.building", "engine.replaced"])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    ("make", "kind", "other", "message"),
    [
        (
            lambda output: build(output, "w"),
            folder.MODEL,
            folder.VERIFIER,
            "manifest.json, so it holds the engine of a",
        ),
        (verify, folder.VERIFIER, folder.MODEL, "verifier.json, so it holds verification engines, and the engine of a"),
    ],
)
def test_a_finished_folder_is_replaced_by_its_kind_alone(
    tmp_path: Path,
    make: Callable[[Path], None],
    kind: folder.Kind,
    other: folder.Kind,
    message: str,
    marked: bool,
    name: str,
) -> None:
    made = tmp_path / name
    make(made)
    if not marked:
        (made / folder.MARK).unlink()
    folder.check_output(tmp_path / "engine", kind)
    with pytest.raises(ConfigError, match=f"{name} has {message} .*; give another place or remove it"):
        folder.check_output(tmp_path / "engine", other)


@pytest.mark.parametrize("kind", folder.KINDS, ids=lambda kind: kind.record)
def test_what_a_killed_build_left_is_free_to_use_for_all(tmp_path: Path, kind: folder.Kind) -> None:
    (tmp_path / folder.MARK).touch()
    (tmp_path / "trees.engine").touch()
    folder.check_output(tmp_path, kind)


def test_trial_can_be_opened_while_the_build_has_no_manifest(tmp_path: Path) -> None:
    with folder.staging(tmp_path / "engine") as directory:
        (directory / "tokenizer").mkdir()
        (directory / "tokenizer" / "tokenizer.json").write_text("{}")
        with folder.trial(directory, tiny_manifest(directory)) as view:
            assert manifest.read(view, verify=True).artifacts.keys() == {"tokenizer/tokenizer.json"}
            assert not (directory / manifest.NAME).exists()
        assert not view.exists()
        assert (directory / "tokenizer" / "tokenizer.json").is_file()
