"""What `auto` picks, and the reason that is printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders.choices import choose_backend, choose_dtype, choose_runner, has_gpu, native_bfloat16
from trtspec.errors import MissingDependency
from trtspec.executors.tensorrt_llm.probe import Probe

GOOD = Probe("1.2.1", engine_flow=True, pytorch_flow=True)


@pytest.mark.parametrize(
    ("found", "gpu", "value", "why"),
    [
        (GOOD, False, "embedded", "no NVIDIA GPU here"),
        (Probe(), True, "embedded", "the package is not installed"),
        (GOOD, True, "tensorrt_llm", "tensorrt-llm 1.2.1 and an NVIDIA GPU are here"),
        (
            replace(GOOD, version="1.3.0"),
            True,
            "embedded",
            "tensorrt-llm is 1.3.0 and not 1.2.1, with compiled",
        ),
        (replace(GOOD, engine_flow=False), True, "embedded", "and not 1.2.1, with compiled engines"),
        (replace(GOOD, error="no libcuda"), True, "embedded", "does not import: no libcuda"),
    ],
)
def test_auto_backend_says_why(found: Probe, gpu: bool, value: str, why: str) -> None:
    choice = choose_backend("auto", probe=lambda: found, gpu=gpu)
    assert choice.value == value and why in choice.why


@pytest.mark.parametrize("asked", ["embedded", "tensorrt_llm"])
def test_a_backend_that_is_asked_for_is_taken_without_looking(asked: str) -> None:
    """A dry run needs neither the package nor a GPU; what they lack is told by the build."""
    assert choose_backend(asked, probe=lambda: pytest.fail("nothing to look for"), gpu=False).value == asked


def test_without_a_gpu_nothing_is_imported_to_choose() -> None:
    assert choose_backend("auto", probe=lambda: pytest.fail("nothing to look for"), gpu=False).value == "embedded"
    demo = choose_backend("auto", probe=lambda: pytest.fail("nothing to look for"), gpu=True, demo=True)
    assert demo.value == "embedded"


@pytest.mark.parametrize(
    ("asked", "openvino", "gpu", "expected"),
    [
        ("auto", True, False, "openvino"),
        ("auto", True, True, "eager"),
        ("auto", False, False, "eager"),
        ("eager", True, False, "eager"),
        ("openvino", True, True, "openvino"),
    ],
)
def test_runner(asked: str, openvino: bool, gpu: bool, expected: str) -> None:
    assert choose_runner(asked, openvino=openvino, gpu=gpu).value == expected


def test_a_runner_that_is_not_installed_is_refused() -> None:
    with pytest.raises(MissingDependency, match="--runner openvino needs the package openvino; pip install"):
        choose_runner("openvino", openvino=False, gpu=False)


@pytest.mark.parametrize(
    ("asked", "stored", "runner", "native", "expected"),
    [
        ("auto", "BF16", "eager", "amx_bf16", "bfloat16"),
        ("auto", "Q4_1", "eager", "avx512_bf16", "bfloat16"),
        ("auto", "F16", "eager", None, "float32"),
        ("auto", "F16", "openvino", None, "bfloat16"),
        ("auto", "F32", "openvino", "amx_bf16", "float32"),
        ("bfloat16", "F32", "eager", None, "bfloat16"),
        ("float32", "BF16", "openvino", "amx_bf16", "float32"),
    ],
)
def test_dtype(asked: str, stored: str, runner: str, native: str | None, expected: str) -> None:
    assert choose_dtype(asked, stored, runner, native).value == expected


def test_dtype_names_its_reason() -> None:
    assert choose_dtype("auto", "BF16", "eager", None).why.startswith("this CPU has no bfloat16 instructions")
    assert (
        choose_dtype("auto", "Q8_0", "eager", "amx_bf16").why == "the checkpoint is Q8_0 and this machine has amx_bf16"
    )
    assert choose_dtype("auto", "Q8_0", "openvino", None).why.startswith("the checkpoint is Q8_0, and OpenVINO widens")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"fpu", "avx2", "avx512f"}, None),
        ({"amx_bf16", "avx512_bf16"}, "avx512_bf16"),
        ({"asimd", "bf16", "i8mm"}, "bf16"),
        (set(), None),
    ],
)
def test_cpu_flag(flags: set[str], expected: str | None) -> None:
    assert native_bfloat16(flags, gpu=False) == expected


def test_gpu_is_what_the_driver_lists(tmp_path: Path) -> None:
    assert not has_gpu(tmp_path / "absent")
    assert not has_gpu(tmp_path)
    (tmp_path / "0000:01:00.0").mkdir()
    assert has_gpu(tmp_path)
