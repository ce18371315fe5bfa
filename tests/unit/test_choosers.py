"""Which chooser an engine gets, and what the log says where kernels cannot be had."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from plugins import launch
from tests.choosers import TWINS
from trtspec.decoding.chooser import HOST
from trtspec.executors.embedded import choosers
from trtspec.executors.embedded.choosers import choose_chooser, why_not
from trtspec.executors.embedded.kernel_chooser import KernelChooser, Kernels

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_the_kernels_do_what_they_must_and_are_tried_with_what_passes_launch() -> None:
    """Interpreted, as everywhere in tests."""
    assert why_not(CPU, torch.bfloat16, 300) is None


def test_on_a_cpu_nothing_is_tried() -> None:
    assert choose_chooser(CPU, torch.float32, 300, TWINS) is HOST


def refuse(*arguments: object) -> Any:
    raise RuntimeError("Failed to find C compiler.\nPlease specify one.")


def test_without_triton_the_reason_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("plugins.kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    reason = why_not(CPU, torch.float32, 300)
    assert reason is not None and reason.startswith("ModuleNotFoundError: import of triton halted")


def test_the_log_says_which_it_is_and_why(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger=choosers.__name__)
    on_cpu: Callable[..., str | None] = lambda device, *more: why_not(CPU, *more)  # noqa: E731
    monkeypatch.setattr(choosers, "why_not", on_cpu)
    assert isinstance(choose_chooser(GPU, torch.float32, 300, TWINS), KernelChooser)
    assert choose_chooser(GPU, torch.float32, 300, replace(TWINS, walk_tree=refuse)) is HOST
    told, warned = caplog.records
    assert (told.levelno, told.getMessage()) == (logging.INFO, "Triton's kernels choose tokens on cuda")
    assert warned.levelno == logging.WARNING
    assert "PyTorch chooses tokens on cuda" in warned.getMessage()
    assert "(RuntimeError: Failed to find C compiler.)" in warned.getMessage()


def off_by_one(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any) -> Any:
        result = kernel(*arguments)
        return type(result)(*(item + 1 for item in result))

    return wrong


@pytest.mark.parametrize("name", ["choose_token", "walk_tree", "chain_rejection"])
def test_kernels_that_are_wrong_are_not_used(name: str) -> None:
    wrong: Kernels = replace(TWINS, **{name: off_by_one(getattr(TWINS, name))})
    reason = why_not(CPU, torch.float32, 300, wrong)
    assert reason is not None and reason.startswith(f"ArithmeticError: {name} says")
    assert why_not(CPU, torch.float32, 300, TWINS) is None


def test_a_kernel_is_launched_on_the_gpu_of_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    context = launch.on_gpu_of(torch.device("cuda", 1))
    assert isinstance(context, torch.cuda.device) and context.idx == 1
    asked = []
    really = launch.on_gpu_of
    monkeypatch.setattr(launch, "on_gpu_of", lambda device: asked.append(device) or really(device))
    row: Tensor = torch.zeros(1, dtype=torch.int32)
    launch.choose_token(torch.zeros(1, 8), row.long(), row, row, row, row, 8)
    assert asked == [CPU, CPU]
