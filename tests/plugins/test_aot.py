"""Compiling without a GPU: what comes out, what is refused, and what is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plugins import aot, aot_command, aot_worker, ptx, symbolic
from plugins.contract import LOGITS_TYPES, KernelSpec
from plugins.known import known_sizes
from plugins.specs import KERNELS
from tests.plugins.sample_specs import ROW_PARTS
from trtspec.errors import ConfigError, KernelError, MissingDependency

PACKAGE = "tests.plugins"
SEEN_BITS = (64, 64, 32, 32, 64, 64, 64)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def compile_sample(
    spec: KernelSpec = ROW_PARTS, logits: str = "bfloat16", architecture: int = 80, multiples: Sequence[str] = ()
) -> aot.CompiledKernel:
    return aot.compile_kernel(spec, logits, architecture, multiples=multiples, package=PACKAGE)


def check(compiled: aot.CompiledKernel, architecture: int) -> None:
    entry = ptx.read_entry(compiled.ptx)
    assert (entry.name, entry.bits, entry.threads) == (compiled.entry, SEEN_BITS, compiled.block_x)
    assert compiled.block_x == 64
    assert 0 < compiled.shared_bytes <= 1024
    assert compiled.target.rstrip("a") == f"sm_{architecture}"
    assert aot_worker.complaint_about(compiled.ptx) == ""


@pytest.mark.parametrize("architecture", [80, 90])
def test_tensorrt_sees_pointers_numbers_and_pointers_and_nothing_else(architecture: int) -> None:
    compiled = compile_sample(architecture=architecture)
    check(compiled, architecture)
    assert compiled.target == f"sm_{architecture}", "later chips can run it"
    assert str(Path.cwd()) not in compiled.ptx, "engines hold no paths of the machine that built them"
    assert "fma.rn" not in compiled.ptx and "mul.rn.f32" in compiled.ptx, "rounded as the eager twin rounds"


def test_rows_of_known_alignment_are_read_by_vectors() -> None:
    multiples = ("vocabulary", "lowest", "logits")
    aligned = compile_sample(multiples=multiples)
    check(aligned, 80)
    assert ("ld.global.v2" in aligned.ptx, "ld.global.v" in compile_sample().ptx) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("logits", LOGITS_TYPES)
@pytest.mark.parametrize("architecture", aot.ARCHITECTURES)
def test_every_architecture_and_type(triton: str, architecture: int, logits: str) -> None:
    compiled = compile_sample(logits=logits, architecture=architecture)
    check(compiled, architecture)
    assert compiled.triton == triton


@pytest.mark.slow
def test_what_only_one_generation_has_is_said_to_be_for_that_one() -> None:
    """Largest values of float32 are found by an instruction of sm_100a."""
    assert compile_sample(architecture=100).target == "sm_100a"


def test_interpreter_mode_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert compile_sample().entry == "row_parts"


def test_a_specification_that_is_not_the_functions_is_refused() -> None:
    swapped = dataclasses.replace(ROW_PARTS, scalars=("lowest", "vocabulary"))
    with pytest.raises(KernelError, match="row_parts takes .*'vocabulary', 'lowest'.*; its specification says"):
        compile_sample(swapped)


def test_what_does_not_compile_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(KernelError, match=r"(?s)row_parts does not compile for sm_80:.*power of 2"):
        compile_sample(dataclasses.replace(ROW_PARTS, constants={"BLOCK": 100}))


def test_a_kernel_is_where_its_specification_says() -> None:
    with pytest.raises(KernelError, match="row_parts is said to be in tests.plugins.nowhere"):
        compile_sample(dataclasses.replace(ROW_PARTS, module="nowhere"))


def test_more_shared_memory_than_a_launch_may_have_is_refused(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(aot, "MOST_SHARED_BYTES", 4)
    with pytest.raises(KernelError, match="bytes of shared memory; at most 4"):
        compile_sample()
    assert not own_cache.exists()


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ConfigError, match="architecture 75; known are 80, 86, 89, 90, 100, 120"):
        compile_sample(architecture=75)


@pytest.mark.parametrize("version", ["3.4.0", "3.10.0", "4.5.1", "2.7"])
def test_other_versions_of_triton_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(MissingDependency, match=f"Triton {version} is installed; .* with 3.5 to 3.9"):
        compile_sample()


def test_without_triton_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(MissingDependency, match=r"pip install 'trtspec\[plugins\]'"):
        compile_sample()


def test_the_assembler_complains_of_what_does_not_hold() -> None:
    text = compile_sample().ptx
    assert "ret" in text
    assert "error" in aot_worker.complaint_about(text.replace("ret;", "retreat;"))


def test_a_text_that_does_not_hold_without_its_suffix_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"sm_100": "no such instruction", "sm_100a": ""}
    monkeypatch.setattr(aot_worker, "complaint_about", lambda text: said[ptx.target(text)])
    assert ptx.target(aot_worker.for_most_chips(".version 8.7\n.target sm_100a\n")) == "sm_100a"
    said["sm_100a"] = "nor here"
    with pytest.raises(KernelError, match="refuses the PTX for sm_100a: nor here"):
        aot_worker.for_most_chips(".version 8.7\n.target sm_100a\n")


@pytest.mark.parametrize("name", ["num_ctas", "global_scratch_size", "launch_cooperative_grid"])
def test_needs_that_a_launch_cannot_meet_are_refused(name: str) -> None:
    metadata = type("Metadata", (), {name: 2})
    with pytest.raises(KernelError, match=f"row_parts has {name} = 2"):
        aot_worker.check_needs("row_parts", metadata)


class TestKept:
    @pytest.fixture
    def runs(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Targets of what was compiled; the compiler is not asked."""
        asked: list[str] = []

        def run(request: Any) -> dict[str, Any]:
            asked.append(f"sm_{request['architecture']}")
            return {"entry": "row_parts", "ptx": "...", "target": asked[-1], "block_x": 64, "shared_bytes": 8}

        monkeypatch.setattr(aot, "_run_worker", run)
        return asked

    def test_the_same_is_compiled_once(self, runs: list[str], own_cache: Path) -> None:
        first = compile_sample()
        assert compile_sample() == first
        assert runs == ["sm_80"]
        assert [path.name for path in own_cache.iterdir()] == [f"{first.key}.json"]

    @pytest.mark.parametrize(
        "other",
        [
            {"logits": "float16"},
            {"architecture": 86},
            {"multiples": ("vocabulary",)},
            {"spec": dataclasses.replace(ROW_PARTS, num_warps=4)},
            {"spec": dataclasses.replace(ROW_PARTS, constants={"BLOCK": 512})},
            {"spec": dataclasses.replace(ROW_PARTS, scalars=("lowest", "vocabulary"))},
        ],
        ids=["type", "architecture", "alignment", "warps", "constant", "order"],
    )
    def test_what_differs_is_compiled_again(self, other: Any, runs: list[str]) -> None:
        assert compile_sample().key != compile_sample(**other).key
        assert len(runs) == 2

    def test_another_triton_compiles_again(self, runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        before = compile_sample()
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.7.0")
        assert (compile_sample().triton, len(runs)) == ("3.7.0", 2)
        assert before.triton != "3.7.0"

    def test_sources_beside_the_kernel_count(
        self, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "kernels_of_ours"
        package.mkdir()
        shutil.copy(Path(__file__).parent / "sample_kernels.py", package)
        (package / "noise.py").write_text("A = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        before = aot.compile_kernel(ROW_PARTS, "float32", 80, package=package.name)
        (package / "noise.py").write_text("A = 2\n")
        assert aot.compile_kernel(ROW_PARTS, "float32", 80, package=package.name).key != before.key

    @pytest.mark.parametrize("damage", ["", "{}", '{"key": 1}', "null"])
    def test_what_is_damaged_is_compiled_again(self, damage: str, runs: list[str], own_cache: Path) -> None:
        first = compile_sample()
        (own_cache / f"{first.key}.json").write_text(damage)
        assert compile_sample() == first
        assert len(runs) == 2

    def test_a_result_under_another_key_is_not_taken(self, runs: list[str], own_cache: Path) -> None:
        first, second = compile_sample(), compile_sample(architecture=86)
        shutil.copy(own_cache / f"{first.key}.json", own_cache / f"{second.key}.json")
        assert compile_sample(architecture=86).target == "sm_86"
        assert runs == ["sm_80", "sm_86", "sm_86"]


def run_command(*arguments: str) -> int:
    return aot_command.main(arguments, {"row_parts": ROW_PARTS}, PACKAGE)


def test_the_command_prints_a_table_and_writes_the_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ptx"
    assert run_command("--arch", "90", "--logits", "bfloat16", "--output", str(folder)) == 0
    heading, row, path = capsys.readouterr().out.splitlines()
    assert heading.split() == ["kernel", "entry", "target", "threads", "shared", "sha256", "parameters"]
    assert row.split()[:4] == ["row_parts", "row_parts", "sm_90", "64"]
    assert row.endswith("logits *bf16, bias *fp32, vocabulary i32, lowest i32, best *fp32, ids *i32, copies *bf16")
    assert ptx.target(Path(path).read_text()) == "sm_90"
    assert [found.name for found in folder.iterdir()] == ["row_parts.bfloat16.sm_90.ptx"]


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.4.0")
    assert run_command() == 2
    assert "error: Triton 3.4.0 is installed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_command("--arch", "75")
    assert "invalid choice: 75" in capsys.readouterr().err


def test_a_refused_kernel_is_not_the_callers_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: Any) -> dict[str, Any]:
        raise KernelError("row_parts uses its hidden parameter")

    monkeypatch.setattr(aot, "_run_worker", refuse)
    assert run_command() == 1
    assert "error: row_parts uses its hidden parameter" in capsys.readouterr().err


def test_the_command_compiles_what_a_plugin_would_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--known", "vocabulary=1024", "--known", "lowest=3"]
    assert run_command("--logits", "bfloat16", *told, "--output", str(tmp_path)) == 0
    row, path = capsys.readouterr().out.splitlines()[1:]
    assert row.endswith(
        "logits *bf16 x16, bias *fp32, vocabulary i32 x16, lowest i32, best *fp32, ids *i32, copies *bf16"
    )
    assert Path(path).read_text() == compile_sample(multiples=("logits", "vocabulary")).ptx != compile_sample().ptx


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ("width=5", "width is no size of row_parts; sizes are lowest, rows, vocabulary"),
        ("rows=x", "'rows=x' is not NAME"),
    ],
)
def test_a_size_that_no_kernel_has_is_refused(known: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert run_command("--known", known) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "multiples"),
    [
        ("choose_token_merge", {"splits"}),
        ("top_logits_merge", {"vocabulary"}),
        ("chain_acceptance", {"target", "draft", "width"}),
        ("chain_follow", set()),
        ("walk_tree", set()),
    ],
)
def test_a_kernel_knows_sizes_of_what_others_leave(name: str, multiples: set[str]) -> None:
    """128,256 tokens are 32 splits of 4096, 63 of 2048 and 126 of 1024; the numbers of rows and of nodes vary."""
    sizes = known_sizes(KERNELS[name], KERNELS.values(), {"width": 128_256, "vocabulary": 128_256})
    assert set(symbolic.multiples_of_16(KERNELS[name], sizes)) == multiples
